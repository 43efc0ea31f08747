"""The agent's reclaim_task (contract, sections 9 and 12): SIGTERM to the worker, wait, SIGKILL, then compare and swap on the lock.

usage: reclaim.py DB TASK
"""
import os
import signal
import sqlite3
import sys
import time

db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=120)
db.row_factory = sqlite3.Row
r = db.execute("SELECT * FROM tasks WHERE id=? AND status='running'", (sys.argv[2],)).fetchone()
if r is None:
    sys.exit(1)


def alive(pid):
    try:
        with open("/proc/%d/status" % pid) as f:
            return "\nState:\tZ" not in f.read()
    except OSError:
        return False


pid = r["worker_pid"]
if pid:
    try:
        os.kill(pid, signal.SIGTERM)
        for _ in range(10):
            if not alive(pid):
                break
            time.sleep(0.5)
        else:
            os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
now = int(time.time())
db.execute("BEGIN IMMEDIATE")
if db.execute("UPDATE tasks SET status='ready', claim_lock=NULL, claim_expires=NULL, worker_pid=NULL, current_run_id=NULL, "
              "consecutive_failures=0 WHERE id=? AND status='running' AND claim_lock IS ?", (r["id"], r["claim_lock"])).rowcount:
    db.execute("UPDATE task_runs SET status='reclaimed', outcome='reclaimed', ended_at=max(?, started_at), claim_lock=NULL, "
               "claim_expires=NULL, worker_pid=NULL WHERE id=? AND ended_at IS NULL", (now, r["current_run_id"]))
    db.execute("INSERT INTO task_events (task_id, run_id, kind, payload, created_at) VALUES (?,?,'reclaimed','{\"manual\": true}',?)",
               (r["id"], r["current_run_id"], now))
db.execute("COMMIT")
