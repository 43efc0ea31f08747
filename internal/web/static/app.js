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
  const order = byId('order');
  const list = rows && !rows.dataset.only ? rows : null;
  const filter = (row) => {
    const hit = row.textContent.toLowerCase().includes(q.value.toLowerCase()) && (!state.value || row.dataset.class === state.value);
    if (row.hidden === hit) row.hidden = !hit;
  };
  const filterAll = () => {
    let shown = 0;
    for (const head of heads.values()) head.hidden = true;
    for (const row of known.values()) {
      filter(row);
      if (row.hidden) continue;
      shown++;
      const head = order.value === 'profile' && heads.get(row.dataset.profile);
      if (head) head.hidden = false;
    }
    count.textContent = shown + ' shown';
  };
  const known = new Map(); // rows by name
  const heads = new Map(); // headings by profile
  let names = []; // in the server's order
  if (list) {
    for (const row of list.querySelectorAll('tr[data-name]')) known.set(row.dataset.name, row);
    names = [...known.keys()];
    let full = !q.value && !state.value && !order.value;
    const change = () => {
      if (!full) { full = true; open(0); } // the server has left rows out
      filterAll();
    };
    order.addEventListener('change', () => { change(); arrange(); filterAll(); });
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
  const head = (profile) => {
    if (!heads.has(profile)) {
      const row = document.createElement('tr');
      row.className = 'group';
      const cell = row.appendChild(document.createElement('th'));
      cell.colSpan = 8;
      cell.scope = 'colgroup';
      cell.textContent = profile || 'no profile';
      heads.set(profile, row);
    }
    return heads.get(profile);
  };
  const by = {
    cpu: (a, b) => b.dataset.cpu - a.dataset.cpu,
    memory: (a, b) => b.dataset.memory - a.dataset.memory,
    profile: (a, b) => !a.dataset.profile - !b.dataset.profile || (a.dataset.profile < b.dataset.profile ? -1 : a.dataset.profile > b.dataset.profile ? 1 : 0),
  };
  // Puts the rows in order, and below headings where they are grouped.
  const arrange = () => {
    const there = new Set(names);
    for (const name of [...known.keys()]) if (!there.has(name)) known.delete(name);
    const sorted = names.map((name) => known.get(name)).filter(Boolean);
    if (by[order.value]) sorted.sort(by[order.value]);
    const all = [];
    let last = null;
    for (const row of sorted) {
      if (order.value === 'profile' && row.dataset.profile !== last) all.push(head(last = row.dataset.profile));
      all.push(row);
    }
    const focus = document.activeElement;
    let at = list.firstElementChild;
    for (const row of all) {
      if (row === at) at = at.nextElementSibling; else list.insertBefore(row, at);
    }
    while (at) { const next = at.nextElementSibling; at.remove(); at = next; }
    if (focus !== document.activeElement && list.contains(focus)) focus.focus({preventScroll: true});
  };
  let version = rows ? Number(rows.dataset.version) : 0;
  let source = null;
  const take = (d) => {
    if (list) {
      for (const name in d.rows || {}) put(name, d.rows[name]);
      if (d.order) names = d.order;
      if (d.order || d.rows && order.value) arrange();
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
  if (rows && window.EventSource) open(list && (q.value || state.value || order.value) ? 0 : version);

  // A page of what changes slowly is loaded again, and shown where it differs.
  const again = document.querySelector('[data-again]');
  if (again) {
    let shown = '';
    const load = async () => {
      try {
        if (document.hidden) return;
        const answer = await fetch(location.href, {headers: {Accept: 'text/html'}});
        if (!answer.ok) throw new Error(answer.status);
        const next = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('[data-again]');
        say('live');
        if (!next || next.innerHTML === shown) return;
        shown = next.innerHTML;
        times(next);
        const focus = focusIn(again, next);
        again.replaceChildren(...next.childNodes);
        if (focus) focus();
      } catch {
        say('not live, trying again');
      } finally {
        setTimeout(load, 3000);
      }
    };
    load();
  }

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
