"""A dispatcher as the agent's gateway has one: the contract's statements through Python's own SQLite, without anything of hinit.

usage: dispatcher.py DB AGENT [unguarded]

It makes passes until SIGTERM, which it heeds between its steps: it leaves claims without a worker behind, but no worker whose pid
is not written down. unguarded: it could not open the lock of the tick, and continues without (contract, section 18, step 0).
"""
import fcntl
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time

db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=120)
db.row_factory = sqlite3.Row
for pragma in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=100"):
    db.execute("PRAGMA " + pragma)
host = socket.gethostname() + ":"
lock = host + str(os.getpid())
ttl = int(os.environ["HERMES_KANBAN_CLAIM_TTL_SECONDS"])
ended = {}  # pid: exit code, of what was reaped
told = []
signal.signal(signal.SIGTERM, lambda *_: told.append(True))


def step():
    if told:
        sys.exit(0)


class Tx:
    def __enter__(self):
        db.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind, *_):
        db.execute("ROLLBACK" if kind else "COMMIT")


def event(task, kind, payload=None, run=None):
    db.execute("INSERT INTO task_events (task_id, run_id, kind, payload, created_at) VALUES (?,?,?,?,?)",
               (task, run, kind, json.dumps(payload) if payload is not None else None, int(time.time())))


def alive(pid):
    try:
        with open("/proc/%d/status" % pid) as f:
            return "\nState:\tZ" not in f.read()
    except OSError:
        return False


def close(run, outcome, error):
    db.execute("UPDATE task_runs SET status=?, outcome=?, error=?, ended_at=?, claim_lock=NULL, claim_expires=NULL, worker_pid=NULL "
               "WHERE id=? AND ended_at IS NULL", (outcome, outcome, error, int(time.time()), run))


def release(r, where, args, outcome, error, payload):
    """The running task goes back to ready, if its claim is still the one that was seen."""
    with Tx():
        if db.execute("UPDATE tasks SET status='ready', claim_lock=NULL, claim_expires=NULL, worker_pid=NULL, current_run_id=NULL "
                      "WHERE id=? AND status='running' AND claim_lock IS ? AND worker_pid IS ?" + where,
                      (r["id"], r["claim_lock"], r["worker_pid"], *args)).rowcount:
            close(r["current_run_id"], outcome, error)
            event(r["id"], outcome, payload, r["current_run_id"])


def reap():
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        ended[pid] = os.waitstatus_to_exitcode(status)


def tidy():
    now = int(time.time())
    for r in db.execute("SELECT * FROM tasks WHERE status='running'").fetchall():
        step()
        ours, pid = (r["claim_lock"] or "").startswith(host), r["worker_pid"]
        if ours and pid and not alive(pid):
            outcome = "rate_limited" if ended.get(pid) == 75 else "crashed"
            release(r, "", (), outcome, "pid %d not alive" % pid, {"pid": pid, "claimer": r["claim_lock"]})
        elif r["claim_expires"] and r["claim_expires"] < now:
            if ours and pid:
                with Tx():
                    if db.execute("UPDATE tasks SET claim_expires=? WHERE id=? AND status='running' AND claim_lock=? AND claim_expires=?",
                                  (now + ttl, r["id"], r["claim_lock"], r["claim_expires"])).rowcount:
                        event(r["id"], "claim_extended", {"reason": "pid_alive", "worker_pid": pid}, r["current_run_id"])
            else:
                release(r, " AND claim_expires=?", (r["claim_expires"],), "reclaimed", "claim expired", {"stale_lock": r["claim_lock"]})


def claim(task):
    """The contract's section 10. It returns the run, or None where somebody else was first."""
    now = int(time.time())
    with Tx():
        if not db.execute("UPDATE tasks SET status='running', claim_lock=?, claim_expires=?, started_at=COALESCE(started_at, ?) "
                          "WHERE id=? AND status='ready' AND claim_lock IS NULL", (lock, now + ttl, now, task["id"])).rowcount:
            return None
        run = db.execute("INSERT INTO task_runs (task_id, profile, status, claim_lock, claim_expires, started_at) VALUES (?,?,?,?,?,?)",
                         (task["id"], task["assignee"], "running", lock, now + ttl, now)).lastrowid
        db.execute("UPDATE tasks SET current_run_id=? WHERE id=?", (run, task["id"]))
        event(task["id"], "claimed", {"lock": lock, "expires": now + ttl, "run_id": run}, run)
    return run


def spawn(task, run):
    env = dict(os.environ, HERMES_KANBAN_TASK=task["id"], HERMES_KANBAN_RUN_ID=str(run), HERMES_KANBAN_CLAIM_LOCK=lock,
               HERMES_PROFILE=task["assignee"], HERMES_KANBAN_DB=sys.argv[1], HERMES_KANBAN_BOARD="default", HERMES_KANBAN_WORKSPACE="/")
    worker = subprocess.Popen([sys.argv[2], "-p", task["assignee"], "--accept-hooks", "chat", "-q", "work kanban task " + task["id"]],
                              env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    with Tx():
        db.execute("UPDATE tasks SET worker_pid=? WHERE id=? AND status='running' AND current_run_id=?", (worker.pid, task["id"], run))
        db.execute("UPDATE task_runs SET worker_pid=? WHERE id=?", (worker.pid, run))
        event(task["id"], "spawned", {"pid": worker.pid}, run)
    worker.returncode = 0  # reap() waits for it, and not this object


def tick():
    reap()
    tidy()
    running = db.execute("SELECT count(*) FROM tasks WHERE status='running'").fetchone()[0]
    for task in db.execute("SELECT * FROM tasks WHERE status='ready' AND assignee IS NOT NULL ORDER BY priority DESC, created_at").fetchall():
        if running >= 12:
            return
        step()
        run = claim(task)
        if run is None:
            continue
        running += 1
        step()
        spawn(task, run)


def main():
    while True:
        step()
        if "unguarded" in sys.argv:
            tick()
        else:
            with open(sys.argv[1] + ".dispatch.lock", "a+") as f:
                try:
                    fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    f = None
                if f:
                    tick()
        time.sleep(0.02)


main()
