"""The questions of one pass, asked by Python's SQLite: peer.py DB TIMES NOW prints milliseconds a pass."""
import sqlite3
import sys
import time

path, times, now = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
db = sqlite3.connect(path, isolation_level=None, timeout=120)
db.row_factory = sqlite3.Row
db.execute("PRAGMA synchronous=FULL")


def one(sql, *args):
    return db.execute(sql, args).fetchone()


def all(sql, *args):
    return db.execute(sql, args).fetchall()


def tick():
    all("SELECT id, claim_lock, worker_pid, claim_expires, last_heartbeat_at FROM tasks WHERE status='running' AND claim_expires IS NOT NULL AND claim_expires < ?", now)
    all("SELECT id, worker_pid, claim_lock, started_at FROM tasks WHERE status='running' AND worker_pid IS NOT NULL")
    all("SELECT t.id, t.worker_pid, t.max_runtime_seconds, COALESCE(r.started_at, t.started_at) AS s FROM tasks t LEFT JOIN task_runs r "
        "ON r.id=t.current_run_id WHERE t.status='running' AND t.max_runtime_seconds IS NOT NULL")
    for row in all("SELECT id, status, consecutive_failures, max_retries FROM tasks WHERE status IN ('todo','blocked')"):
        if row["status"] == "blocked":
            last = one("SELECT kind FROM task_events WHERE task_id=? AND kind IN ('blocked','unblocked') ORDER BY id DESC LIMIT 1", row["id"])
            if last and last["kind"] == "blocked":
                continue
        parents = all("SELECT t.status FROM tasks t JOIN task_links l ON l.parent_id=t.id WHERE l.child_id=?", row["id"])
        if __builtins__.all(p["status"] in ("done", "archived") for p in parents):
            pass
    ready = all("SELECT id, assignee FROM tasks WHERE status='ready' AND claim_lock IS NULL ORDER BY priority DESC, created_at ASC")
    all("SELECT assignee, COUNT(*) AS n FROM tasks WHERE status='running' AND assignee IS NOT NULL GROUP BY assignee")
    for row in ready:
        one("SELECT outcome, ended_at FROM task_runs WHERE task_id=? AND ended_at IS NOT NULL ORDER BY ended_at DESC, id DESC LIMIT 1", row["id"])
        one("SELECT last_failure_error FROM tasks WHERE id=?", row["id"])
        one("SELECT id FROM task_runs WHERE task_id=? AND outcome='completed' AND ended_at>=? LIMIT 1", row["id"], now - 3600)
        all("SELECT body FROM task_comments WHERE task_id=? AND created_at>=?", row["id"], now - 86400)
    all("SELECT id, assignee FROM tasks WHERE status='review' AND claim_lock IS NULL ORDER BY priority DESC, created_at ASC")


tick()
began = time.perf_counter()
for _ in range(times):
    tick()
print((time.perf_counter() - began) * 1000 / times)
