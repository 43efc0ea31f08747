package kanban

import (
	"context"
	"database/sql"
	"time"
)

// Subscription asks a platform's notifier for news of a task.
type Subscription struct {
	TaskID    string `json:"task_id"`
	Platform  string `json:"platform"`
	ChatID    string `json:"chat_id"`
	ThreadID  string `json:"thread_id"`
	UserID    string `json:"user_id"`
	Profile   string `json:"notifier_profile"`
	CreatedAt int64  `json:"created_at"`
	LastEvent int64  `json:"last_event_id"` // cursor: events up to it were told
}

// Subscribe adds a subscription that begins with the next event. One that is there stays as it is.
func (s *Store) Subscribe(ctx context.Context, now time.Time, sub Subscription) error {
	if sub.Platform == "" || sub.ChatID == "" {
		return refuse("cannot subscribe to %s: platform and chat are required", sub.TaskID)
	}
	return s.write(ctx, now, func(t *tx) error {
		if _, err := taskByID(ctx, t, sub.TaskID); err != nil {
			return err
		}
		_, err := t.exec(`INSERT OR IGNORE INTO kanban_notify_subs (task_id, platform, chat_id, thread_id, user_id, notifier_profile, created_at, last_event_id)
			VALUES (?, ?, ?, ?, ?, ?, ?, COALESCE((SELECT max(id) FROM task_events), 0))`,
			sub.TaskID, sub.Platform, sub.ChatID, sub.ThreadID, orNull(sub.UserID), orNull(sub.Profile), t.now)
		return err
	})
}

// Unsubscribe takes a subscription away, and says whether there was one.
func (s *Store) Unsubscribe(ctx context.Context, sub Subscription) (was bool, err error) {
	err = s.write(ctx, time.Time{}, func(t *tx) error {
		n, err := t.exec("DELETE FROM kanban_notify_subs WHERE task_id = ? AND platform = ? AND chat_id = ? AND thread_id = ?",
			sub.TaskID, sub.Platform, sub.ChatID, sub.ThreadID)
		was = n > 0
		return err
	})
	return was && err == nil, err
}

// Subscriptions are those to a task, or all (empty).
func (s *Store) Subscriptions(ctx context.Context, task string) (list []Subscription, err error) {
	err = each(ctx, s.db, func(r *sql.Rows) error {
		var n Subscription
		err := r.Scan(&n.TaskID, &n.Platform, &n.ChatID, &n.ThreadID, &n.UserID, &n.Profile, &n.CreatedAt, &n.LastEvent)
		list = append(list, n)
		return err
	}, `SELECT task_id, platform, chat_id, thread_id, COALESCE(user_id, ''), COALESCE(notifier_profile, ''), created_at, last_event_id
		FROM kanban_notify_subs WHERE ? = '' OR task_id = ? ORDER BY created_at, task_id`, task, task)
	return list, err
}

// Specify moves a task from triage to todo, with a better title or body where they are given, and promotes it if nothing holds it back.
// False: it isn't in triage.
func (s *Store) Specify(ctx context.Context, now time.Time, id, title, body string) (done bool, err error) {
	err = s.write(ctx, now, func(t *tx) error {
		task, err := taskByID(ctx, t, id)
		if err != nil {
			return absent(err)
		}
		if task.Status != Triage {
			return errNothing
		}
		var changed []string
		for _, f := range [][2]string{{"title", title}, {"body", body}} {
			if f[1] == "" {
				continue
			}
			changed = append(changed, f[0])
			if _, err := t.exec("UPDATE tasks SET "+f[0]+" = ? WHERE id = ?", f[1], id); err != nil {
				return err
			}
		}
		if _, err := t.exec("UPDATE tasks SET status = 'todo' WHERE id = ?", id); err != nil {
			return err
		}
		var payload object
		if changed != nil {
			payload = object{{"changed_fields", changed}}
		}
		if err := t.event(id, 0, evSpecified, payload); err != nil {
			return err
		}
		done = true
		_, err = t.promote([]string{id}, DefaultFailureLimit)
		return err
	})
	return done && err == nil, err
}
