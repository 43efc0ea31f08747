// Keeps a page of hinit web live. Every page works without it.
'use strict';
(() => {
  const byId = (id) => document.getElementById(id);
  const live = byId('live');
  const say = (text) => { live.hidden = false; if (live.textContent !== text) live.textContent = text; };
  const plural = (n, unit) => n + ' ' + unit + (n === 1 ? '' : 's');
  const ago = (s) => {
    const past = s >= 0;
    const n = Math.abs(s);
    const text = n < 60 ? Math.floor(n) + ' s' : n < 3600 ? Math.floor(n / 60) + ' min' : n < 172800 ? Math.floor(n / 3600) + ' h' : plural(Math.floor(n / 86400), 'day');
    return past ? text + ' ago' : 'in ' + text;
  };
  const tell = (time) => {
    const at = Date.parse(time.dateTime);
    if (!(at > 0)) return;
    if (!time.title) time.title = time.textContent;
    const text = ago((Date.now() - at) / 1000);
    if (time.textContent !== text) time.textContent = text;
  };
  const times = (root) => root.querySelectorAll('time').forEach(tell);
  times(document);
  setInterval(() => { if (!document.hidden) times(document); }, 1000);

  // The server has escaped what it sends; scripts in it would not run.
  const parse = (html) => {
    const t = document.createElement('template');
    t.innerHTML = html;
    times(t.content);
    return t.content;
  };

  const rows = byId('rows');
  const q = byId('q');
  const state = byId('state');
  const count = byId('count');
  const list = rows && !rows.dataset.only ? rows : null;
  const filter = (row) => {
    const hit = row.textContent.toLowerCase().includes(q.value.toLowerCase()) && (!state.value || row.dataset.class === state.value);
    if (row.hidden === hit) row.hidden = !hit;
  };
  const filterAll = () => {
    let shown = 0;
    for (const row of list.rows) { filter(row); if (!row.hidden) shown++; }
    count.textContent = shown + ' shown';
  };
  const known = new Map();
  if (list) {
    for (const row of list.rows) known.set(row.dataset.name, row);
    let full = !q.value && !state.value;
    const change = () => {
      if (!full) { full = true; open(0); } // the server has left rows out
      filterAll();
    };
    q.addEventListener('input', change);
    state.addEventListener('change', change);
    q.form.addEventListener('submit', (e) => { e.preventDefault(); change(); });
  }
  const focusIn = (old, next) => {
    if (!old.contains(document.activeElement)) return;
    const at = [...old.querySelectorAll('a')].indexOf(document.activeElement);
    const to = next.querySelectorAll('a')[at];
    return to && (() => to.focus({preventScroll: true}));
  };
  const put = (name, html) => {
    const next = parse('<table><tbody>' + html + '</tbody></table>').querySelector('tr');
    if (!next) return;
    const old = known.get(name);
    known.set(name, next);
    filter(next);
    if (old && old.isConnected) {
      const focus = focusIn(old, next);
      old.replaceWith(next);
      if (focus) focus();
    }
  };
  const arrange = (order) => {
    const there = new Set(order);
    for (const [name, row] of known) if (!there.has(name)) { row.remove(); known.delete(name); }
    let at = list.firstElementChild;
    for (const name of order) {
      const row = known.get(name);
      if (!row) continue;
      if (row === at) at = at.nextElementSibling; else list.insertBefore(row, at);
    }
  };
  let version = rows ? Number(rows.dataset.version) : 0;
  let source = null;
  const take = (d) => {
    if (list) {
      for (const name in d.rows || {}) put(name, d.rows[name]);
      if (d.order) arrange(d.order);
      if (d.head) byId('head').replaceChildren(parse(d.head));
      if (d.rows || d.order) filterAll();
    } else if (d.rows && d.rows[rows.dataset.only]) {
      const row = parse('<table><tbody>' + d.rows[rows.dataset.only] + '</tbody></table>');
      const now = row.querySelector('.state');
      const shown = byId('state-now');
      if (now && shown) { now.id = 'state-now'; shown.replaceWith(now); }
    }
    version = d.version;
  };
  const open = (from) => {
    if (source) source.close();
    version = from;
    const only = list ? '' : '&only=' + encodeURIComponent(rows.dataset.only);
    source = new EventSource(rows.dataset.live + '?version=' + from + only);
    source.onopen = () => say('live');
    source.addEventListener('rows', (e) => take(JSON.parse(e.data)));
    source.onerror = () => {
      say('not live, trying again');
      if (source.readyState === EventSource.CLOSED) setTimeout(() => open(version), 5000);
    };
  };
  if (rows && window.EventSource) open(list && (q.value || state.value) ? 0 : version);

  const log = byId('log');
  if (log && window.EventSource) {
    const most = 4000;
    log.scrollTop = log.scrollHeight;
    const q = new URLSearchParams(location.search).get('q') || '';
    new EventSource(log.dataset.follow + '?q=' + encodeURIComponent(q)).addEventListener('lines', (e) => {
      const end = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
      log.append(JSON.parse(e.data) + '\n');
      while (log.childNodes.length > most) log.firstChild.remove();
      if (end) log.scrollTop = log.scrollHeight;
    });
  }
})();
