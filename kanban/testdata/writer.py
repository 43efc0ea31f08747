"""Another writer of the board: it speaks the contract's statements through Python's own SQLite.

usage: writer.py init DB | check DB | json | flock PATH | lockf PATH | storm DB SEED LOG
"""
import fcntl
import json
import os
import random
import socket
import sqlite3
import sys
import time

TABLES = """
CREATE TABLE IF NOT EXISTS tasks (id TEXT PRIMARY KEY, title TEXT NOT NULL, body TEXT, assignee TEXT, status TEXT NOT NULL,
  priority INTEGER DEFAULT 0, created_by TEXT, created_at INTEGER NOT NULL, started_at INTEGER, completed_at INTEGER,
  workspace_kind TEXT NOT NULL DEFAULT 'scratch', workspace_path TEXT, branch_name TEXT, claim_lock TEXT, claim_expires INTEGER,
  tenant TEXT, result TEXT, idempotency_key TEXT, consecutive_failures INTEGER NOT NULL DEFAULT 0, worker_pid INTEGER,
  last_failure_error TEXT, max_runtime_seconds INTEGER, last_heartbeat_at INTEGER, current_run_id INTEGER,
  workflow_template_id TEXT, current_step_key TEXT, skills TEXT, model_override TEXT, max_retries INTEGER,
  goal_mode INTEGER NOT NULL DEFAULT 0, goal_max_turns INTEGER, session_id TEXT, due_at INTEGER);
CREATE TABLE IF NOT EXISTS task_links (parent_id TEXT NOT NULL, child_id TEXT NOT NULL, PRIMARY KEY (parent_id, child_id));
CREATE TABLE IF NOT EXISTS task_comments (id INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL, author TEXT NOT NULL,
  body TEXT NOT NULL, created_at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS task_events (id INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL, run_id INTEGER,
  kind TEXT NOT NULL, payload TEXT, created_at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS task_runs (id INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL, profile TEXT, step_key TEXT,
  status TEXT NOT NULL, claim_lock TEXT, claim_expires INTEGER, worker_pid INTEGER, max_runtime_seconds INTEGER,
  last_heartbeat_at INTEGER, started_at INTEGER NOT NULL, ended_at INTEGER, outcome TEXT, summary TEXT, metadata TEXT, error TEXT);
CREATE TABLE IF NOT EXISTS task_attachments (id INTEGER PRIMARY KEY AUTOINCREMENT, task_id TEXT NOT NULL, filename TEXT NOT NULL,
  stored_path TEXT NOT NULL, content_type TEXT, size INTEGER NOT NULL DEFAULT 0, uploaded_by TEXT, created_at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS kanban_notify_subs (task_id TEXT NOT NULL, platform TEXT NOT NULL, chat_id TEXT NOT NULL,
  thread_id TEXT NOT NULL DEFAULT '', user_id TEXT, notifier_profile TEXT, created_at INTEGER NOT NULL,
  last_event_id INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (task_id, platform, chat_id, thread_id));
CREATE INDEX IF NOT EXISTS idx_tasks_assignee_status ON tasks(assignee, status);
CREATE INDEX IF NOT EXISTS idx_tasks_status ON tasks(status);
CREATE INDEX IF NOT EXISTS idx_tasks_tenant ON tasks(tenant);
CREATE INDEX IF NOT EXISTS idx_tasks_idempotency ON tasks(idempotency_key);
CREATE INDEX IF NOT EXISTS idx_tasks_session_id ON tasks(session_id);
CREATE INDEX IF NOT EXISTS idx_links_child ON task_links(child_id);
CREATE INDEX IF NOT EXISTS idx_links_parent ON task_links(parent_id);
CREATE INDEX IF NOT EXISTS idx_comments_task ON task_comments(task_id, created_at);
CREATE INDEX IF NOT EXISTS idx_events_task ON task_events(task_id, created_at);
CREATE INDEX IF NOT EXISTS idx_events_run ON task_events(run_id, id);
CREATE INDEX IF NOT EXISTS idx_runs_task ON task_runs(task_id, started_at);
CREATE INDEX IF NOT EXISTS idx_runs_status ON task_runs(status);
CREATE INDEX IF NOT EXISTS idx_attachments_task ON task_attachments(task_id, created_at);
CREATE INDEX IF NOT EXISTS idx_notify_task ON kanban_notify_subs(task_id);
"""


def connect(path):
    db = sqlite3.connect(path, isolation_level=None, timeout=120)
    db.row_factory = sqlite3.Row
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=100", "foreign_keys=ON", "secure_delete=ON", "cell_size_check=ON"):
        db.execute("PRAGMA " + pragma)
    return db


class Tx:
    def __init__(self, db):
        self.db = db

    def __enter__(self):
        self.db.execute("BEGIN IMMEDIATE")
        return self.db

    def __exit__(self, kind, *_):
        self.db.execute("ROLLBACK" if kind else "COMMIT")


def event(db, task, kind, payload=None, run=None):
    db.execute("INSERT INTO task_events (task_id, run_id, kind, payload, created_at) VALUES (?,?,?,?,?)",
               (task, run, kind, json.dumps(payload) if payload is not None else None, int(time.time())))


def create(db, log, rnd):
    task = "t_" + os.urandom(4).hex()  # pids come again, and a seed with them
    who = rnd.choice(["alpha", "beta", "orion", None])
    with Tx(db):
        db.execute("INSERT INTO tasks (id, title, assignee, status, priority, created_by, created_at) VALUES (?,?,?,?,?,?,?)",
                   (task, "made by Python", who, "ready", rnd.randrange(3), "user", int(time.time())))
        event(db, task, "created", {"assignee": who, "status": "ready", "parents": [], "tenant": None, "branch_name": None,
                                    "skills": None, "goal_mode": False})
    log.write(task + "\n")
    log.flush()


def claim(db, rnd):
    """A terminal works on its own tasks: it claims, says that it lives, and finishes."""
    row = db.execute("SELECT id FROM tasks WHERE status='ready' AND assignee='orion' AND claim_lock IS NULL LIMIT 1").fetchone()
    if not row:
        return
    task, now, lock = row["id"], int(time.time()), "%s:%d" % (socket.gethostname(), os.getpid())
    with Tx(db):
        if db.execute("SELECT 1 FROM task_links l JOIN tasks p ON p.id=l.parent_id WHERE l.child_id=? AND p.status NOT IN ('done','archived')",
                      (task,)).fetchone():
            if db.execute("UPDATE tasks SET status='todo' WHERE id=? AND status='ready'", (task,)).rowcount:
                event(db, task, "claim_rejected", {"reason": "parents_not_done"})
            return
        if not db.execute("UPDATE tasks SET status='running', claim_lock=?, claim_expires=?, started_at=COALESCE(started_at, ?) "
                          "WHERE id=? AND status='ready' AND assignee='orion' AND claim_lock IS NULL", (lock, now + 900, now, task)).rowcount:
            return
        run = db.execute("INSERT INTO task_runs (task_id, profile, status, claim_lock, claim_expires, started_at) VALUES (?,?,?,?,?,?)",
                         (task, "orion", "running", lock, now + 900, now)).lastrowid
        db.execute("UPDATE tasks SET current_run_id=? WHERE id=?", (run, task))
        event(db, task, "claimed", {"lock": lock, "expires": now + 900, "run_id": run}, run)
    with Tx(db):
        if db.execute("UPDATE tasks SET last_heartbeat_at=? WHERE id=? AND status='running' AND current_run_id=?", (now, task, run)).rowcount:
            event(db, task, "heartbeat", None, run)
    kind, status = rnd.choice([("completed", "done"), ("blocked", "blocked")])
    with Tx(db):
        now = int(time.time())
        if not db.execute("UPDATE tasks SET status=?, claim_lock=NULL, claim_expires=NULL, worker_pid=NULL, current_run_id=NULL "
                          "WHERE id=? AND status='running' AND current_run_id=?", (status, task, run)).rowcount:
            return
        db.execute("UPDATE task_runs SET status=?, outcome=?, ended_at=?, claim_lock=NULL, claim_expires=NULL, worker_pid=NULL WHERE id=?",
                   (status, kind, now, run))
        event(db, task, kind, {"reason": None} if kind == "blocked" else {"result_len": 0, "summary": None}, run)


def comment(db, rnd):
    row = db.execute("SELECT id FROM tasks ORDER BY random() LIMIT 1").fetchone()
    if row:
        with Tx(db):
            db.execute("INSERT INTO task_comments (task_id, author, body, created_at) VALUES (?,?,?,?)", (row["id"], "user", "hm", int(time.time())))
            event(db, row["id"], "commented", {"author": "user", "len": 2})


def unblock(db, rnd):
    row = db.execute("SELECT id FROM tasks WHERE status='blocked' ORDER BY random() LIMIT 1").fetchone()
    if row:
        with Tx(db):
            waits = db.execute("SELECT 1 FROM task_links l JOIN tasks p ON p.id=l.parent_id WHERE l.child_id=? AND p.status<>'done'", (row["id"],)).fetchone()
            status = "todo" if waits else "ready"
            if db.execute("UPDATE tasks SET status=?, consecutive_failures=0, last_failure_error=NULL WHERE id=? AND status='blocked'",
                          (status, row["id"])).rowcount:
                event(db, row["id"], "unblocked", {"status": status} if waits else None)


def storm(path, seed, made):
    rnd = random.Random(int(seed) * 1000003 + os.getpid())
    db = connect(path)
    log = open(made, "a")
    while True:
        rnd.choice([lambda: create(db, log, rnd), lambda: claim(db, rnd), lambda: claim(db, rnd), lambda: comment(db, rnd),
                    lambda: unblock(db, rnd)])()
        time.sleep(rnd.random() * 0.05)


def check(path):
    """What Python makes of a board: its structure, settings and rows."""
    db = connect(path)
    out = {}
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type='table' AND name NOT LIKE 'sqlite_%' ORDER BY name").fetchall():
        out[name] = [list(r)[1:] for r in db.execute("PRAGMA table_info(%s)" % name)]
        for r in db.execute("PRAGMA index_list(%s)" % name).fetchall():
            if not r["name"].startswith("sqlite_"):
                out[r["name"]] = [c["name"] for c in db.execute("PRAGMA index_info(%s)" % r["name"])]
    out["integrity"] = db.execute("PRAGMA integrity_check").fetchone()[0]
    out["journal"] = db.execute("PRAGMA journal_mode").fetchone()[0]
    print(json.dumps(out, sort_keys=True))


def main():
    verb, args = sys.argv[1], sys.argv[2:]
    if verb == "init":
        connect(args[0]).executescript(TABLES)
    elif verb == "check":
        check(args[0])
    elif verb == "json":
        for line in sys.stdin:
            print(json.dumps(json.loads(line)))
    elif verb in ("flock", "lockf"):
        f = open(args[0], "a+")
        try:
            getattr(fcntl, verb)(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
            print("held", flush=True)
            sys.stdin.read()
        except OSError:
            print("refused", flush=True)
    elif verb == "storm":
        storm(*args)


main()
