"""A gateway of the agent, as far as the board goes (contract, sections 24 and 25): its dispatcher loop, which decomposes first, and its notifier.

usage: gateway.py ROOT. What it does it says on standard output.
"""
import fcntl
import os
import sqlite3
import sys
import threading
import time

root = sys.argv[1]
path = root + "/kanban.db"


def say(*words):
    print(*words, flush=True)


def connect():
    db = sqlite3.connect(path, isolation_level=None, timeout=120)
    db.row_factory = sqlite3.Row
    return db


def lock(name):
    f = open(name, "a+")
    try:
        fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        f.close()
        return None
    return f


def notifier():
    db = connect()
    while True:
        for sub in db.execute("SELECT * FROM kanban_notify_subs").fetchall():
            db.execute("BEGIN IMMEDIATE")
            cursor = db.execute("SELECT last_event_id FROM kanban_notify_subs WHERE task_id=? AND chat_id=?",
                                (sub["task_id"], sub["chat_id"])).fetchone()[0]
            news = db.execute("SELECT id, kind FROM task_events WHERE task_id=? AND id>? AND kind IN "
                              "('completed','blocked','gave_up','crashed','timed_out') ORDER BY id", (sub["task_id"], cursor)).fetchall()
            if news:
                db.execute("UPDATE kanban_notify_subs SET last_event_id=? WHERE task_id=? AND chat_id=?",
                           (news[-1]["id"], sub["task_id"], sub["chat_id"]))
            db.execute("COMMIT")
            for e in news:
                say("told", sub["chat_id"], sub["task_id"], e["kind"])
        time.sleep(0.1)


def loop():
    held = lock(root + "/kanban/.dispatcher.lock")
    if held is None:
        say("another gateway already holds the dispatcher lock; this one will NOT dispatch")
        return
    db = connect()
    while True:
        for task in db.execute("SELECT id FROM tasks WHERE status='triage'").fetchall():
            db.execute("BEGIN IMMEDIATE")
            if db.execute("UPDATE tasks SET status='todo' WHERE id=? AND status='triage'", (task["id"],)).rowcount:
                db.execute("INSERT INTO task_events (task_id, kind, created_at) VALUES (?,'specified',?)", (task["id"], int(time.time())))
            db.execute("COMMIT")
            say("decomposed", task["id"])
        tick = lock(path + ".dispatch.lock")
        say("skipped_locked" if tick is None else "dispatches")
        if tick:
            tick.close()
        time.sleep(0.2)


os.makedirs(root + "/kanban", exist_ok=True)
at_start = lock(path + ".dispatch.lock")
say("at its start the board is", "free" if at_start else "held")
if at_start:
    at_start.close()
if os.environ.get("HERMES_KANBAN_DISPATCH_IN_GATEWAY", "").lower() in ("0", "false", "no", "off"):
    say("kanban notifier: disabled via HERMES_KANBAN_DISPATCH_IN_GATEWAY")
    time.sleep(1e6)
threading.Thread(target=notifier, daemon=True).start()
time.sleep(0.5)  # the agent waits 5 s before the first round
loop()
time.sleep(1e6)
