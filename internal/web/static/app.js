// Keeps a page of hinit web live. Every page works without it.
'use strict';
(() => {
  const byId = (id) => document.getElementById(id);
  const {base, control} = document.body.dataset;
  const make = (tag, set, ...inner) => {
    const e = Object.assign(document.createElement(tag), set);
    e.append(...inner);
    return e;
  };

  // Whether what is shown is as it is now.
  const live = byId('live');
  let cut = null; // from hinit web; null: there was no connection yet
  const fresh = () => {
    const stale = cut || !!document.querySelector('[data-stale]');
    document.body.classList.toggle('stale', stale);
    if (cut === null && !stale) return;
    live.hidden = false;
    const text = !stale ? 'live' : cut ? 'stale: hinit web does not answer' : 'stale: hinit does not answer';
    if (live.textContent !== text) live.textContent = text;
  };
  const connected = (is) => { cut = !is; fresh(); };

  const ago = (s) => {
    const n = Math.abs(s);
    const text = n < 60 ? Math.floor(n) + ' s' : n < 3600 ? Math.floor(n / 60) + ' min' : n < 172800 ? Math.floor(n / 3600) + ' h' : Math.floor(n / 86400) + ' days';
    return s >= 0 ? text + ' ago' : 'in ' + text;
  };
  const tell = (time) => {
    const at = Date.parse(time.dateTime);
    if (!(at > 0)) return;
    if (!time.title) time.title = new Date(at).toISOString();
    let text = ago((Date.now() - at) / 1000);
    if (time.closest('tr[data-name]')) text = text.replace(/^in | ago$/g, '');
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
  const get = async (url) => {
    const answer = await fetch(url, {headers: {Accept: 'text/html'}});
    if (!answer.ok) throw new Error(answer.status);
    return new DOMParser().parseFromString(await answer.text(), 'text/html');
  };
  const focusIn = (old, next) => {
    if (!old.contains(document.activeElement)) return;
    const at = [...old.querySelectorAll('a')].indexOf(document.activeElement);
    const to = next.querySelectorAll('a')[at];
    return to && (() => to.focus({preventScroll: true}));
  };

  // A question before a stop.
  document.addEventListener('submit', (e) => {
    const form = e.target;
    if (!form.dataset.ask) return;
    e.preventDefault();
    const yes = make('button', {className: 'danger', textContent: 'Stop it'});
    const no = make('button', {type: 'button', textContent: 'Leave it', onclick: () => box.close()});
    const post = make('form', {method: 'post', action: form.action, className: 'actions'}, yes, no);
    const box = make('dialog', {onclose: () => box.remove()}, make('p', {textContent: form.dataset.ask}), post);
    document.body.append(box);
    box.showModal();
    no.focus();
  });

  // A part of a page that is loaded again by itself, and shown where it differs.
  const again = (part, url, still) => {
    let shown = '';
    const load = async () => {
      if (!still()) return;
      try {
        if (document.hidden) return;
        const next = (await get(url())).querySelector('[data-again]');
        if (!still() || !next) return;
        if (next.innerHTML !== shown) {
          shown = next.innerHTML;
          times(next);
          const focus = focusIn(part, next);
          part.replaceChildren(...next.childNodes);
          if (focus) focus();
        }
        connected(true);
      } catch {
        connected(false);
      } finally {
        setTimeout(load, 3000);
      }
    };
    setTimeout(load, 3000);
  };

  // A log that is followed.
  const follow = (log, from) => {
    const pre = log && log.querySelector('#log');
    if (!pre) return () => {};
    const wrap = log.querySelector('#wrap');
    const set = () => { pre.classList.toggle('asis', !wrap.checked); localStorage.setItem('wrap', wrap.checked ? '' : 'no'); };
    wrap.checked = localStorage.getItem('wrap') !== 'no';
    wrap.addEventListener('change', set);
    set();
    const target = pre.querySelector('.target');
    if (target) target.scrollIntoView({block: 'center'}); else pre.scrollTop = pre.scrollHeight;
    if (!window.EventSource || !pre.dataset.follow) return () => {};
    const q = new URLSearchParams(from);
    const source = new EventSource(pre.dataset.follow + '?q=' + encodeURIComponent(q.get('q') || '') + '&level=' + encodeURIComponent(q.get('level') || ''));
    source.addEventListener('lines', (e) => {
      const end = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 40;
      for (const line of JSON.parse(e.data)) {
        const row = make('span', {className: line.Class});
        if (line.ID) {
          row.id = 't' + line.ID;
          row.append(make('a', {href: pre.dataset.at + '?at=' + line.ID + '#t' + line.ID, textContent: line.Time}), '  ');
        }
        row.append(line.Text + '\n');
        pre.append(row);
      }
      while (pre.childNodes.length > 4000) pre.firstChild.remove();
      if (end) pre.scrollTop = pre.scrollHeight;
    });
    return () => source.close();
  };

  // A stretch of the past is chosen with the mouse.
  document.addEventListener('pointerdown', (e) => {
    const bar = e.target.closest('.past');
    const zoom = bar && bar.closest('.zoom');
    if (!zoom || e.button) return;
    e.preventDefault();
    const box = bar.getBoundingClientRect();
    const at = (x) => Math.min(1, Math.max(0, (x - box.left) / box.width));
    const first = at(e.clientX);
    const mark = make('div', {className: 'mark'});
    zoom.append(mark);
    const left = box.left - zoom.getBoundingClientRect().left;
    const move = (m) => {
      const [a, b] = [first, at(m.clientX)].sort((x, y) => x - y);
      mark.style.left = left + a * box.width + 'px';
      mark.style.width = (b - a) * box.width + 'px';
    };
    const up = (m) => {
      removeEventListener('pointermove', move);
      removeEventListener('pointerup', up);
      mark.remove();
      const [a, b] = [first, at(m.clientX)].sort((x, y) => x - y);
      if (b - a < .01) return;
      const from = Number(zoom.dataset.from);
      const span = zoom.dataset.to - from;
      go('?from=' + Math.round(from + a * span) + '&to=' + Math.round(from + b * span), zoom);
    };
    addEventListener('pointermove', move);
    addEventListener('pointerup', up);
  });
  const go = (query, part) => { if (panel && panel.contains(part)) show(picked, query); else location.search = query; };

  // The list.
  const rows = byId('rows');
  const list = rows && !rows.dataset.only ? rows : null;
  const panel = byId('panel');
  const q = byId('q');
  const state = byId('state');
  const order = byId('order');
  const by = byId('by');
  const count = byId('count');
  const known = new Map(); // rows by name
  const sections = new Map(); // by key
  const folded = new Set(JSON.parse(localStorage.getItem('folded') || 'null') || (innerWidth <= 700 ? ['good', 'off'] : []));
  let names = []; // in the server's order
  let picked = ''; // the service in the panel
  const word = {bad: ['✖', 'in trouble'], wait: ['◐', 'on the way'], good: ['●', 'up'], off: ['○', 'down']};
  const keys = Object.keys(word);
  const number = (row, i) => parseFloat(row.cells[i].textContent) || 0;
  const sorts = {
    name: (a, b) => (a.dataset.name < b.dataset.name ? -1 : 1),
    since: (a, b) => Date.parse(b.cells[2].firstChild.dateTime) - Date.parse(a.cells[2].firstChild.dateTime),
    restarts: (a, b) => number(b, 3) - number(a, 3),
    cpu: (a, b) => number(b, 4) - number(a, 4),
    memory: (a, b) => number(b, 6) - number(a, 6),
  };
  const keyOf = (row) => by.value === 'none' ? 'all' : by.value === 'profile' ? row.dataset.p || '' : by.value === 'group' ? row.dataset.g || '' : row.classList[0];
  const fold = (d) => d.addEventListener('toggle', () => {
    if (q.value) return;
    if (d.open) folded.delete(d.dataset.key); else folded.add(d.dataset.key);
    localStorage.setItem('folded', JSON.stringify([...folded]));
  });
  const section = (key) => {
    if (!sections.has(key)) {
      const d = make('details', {className: 'group ' + (by.value ? '' : key), open: !folded.has(key)});
      d.dataset.key = key;
      const head = make('summary', {});
      if (!by.value) head.append(make('span', {className: 'sign', ariaHidden: 'true', textContent: word[key][0]}), ' ' + word[key][1] + ' ');
      else if (by.value === 'group' && key) head.append(make('a', {href: base + '/group/' + encodeURIComponent(key), textContent: '@' + key}), ' ');
      else head.append((key || 'no ' + by.value) + ' ');
      head.append(make('b', {}), ' ', make('span', {className: 'trouble bad'}));
      const heads = list.querySelector('.heads thead').cloneNode(true);
      heads.className = 'flat';
      heads.querySelectorAll('a').forEach((a) => a.replaceWith(a.textContent));
      d.append(head, make('table', {className: 'list'}, heads, make('tbody', {})));
      fold(d);
      sections.set(key, d);
    }
    return sections.get(key);
  };
  let selected = null; // what a pattern or @GROUP in the filter selects, as the server says
  const filter = (row) => {
    const text = selected ? selected.has(row.dataset.name) : row.textContent.toLowerCase().includes(q.value.toLowerCase());
    const hit = text && (!state.value || row.classList.contains(state.value));
    if (row.hidden === hit) row.hidden = !hit;
  };
  const tally = () => {
    let shown = 0;
    const all = {};
    for (const row of known.values()) {
      all[row.classList[0]] = (all[row.classList[0]] || 0) + 1;
      filter(row);
      if (!row.hidden) shown++;
    }
    for (const d of sections.values()) {
      const there = [...d.querySelectorAll('tbody tr')].filter((row) => !row.hidden);
      const bad = by.value ? there.filter((row) => row.classList.contains('bad')).length : 0;
      d.hidden = !there.length;
      d.querySelector('summary b').textContent = there.length;
      d.querySelector('.trouble').textContent = bad ? bad + ' in trouble' : '';
      if (q.value) d.open = true; else d.open = !folded.has(d.dataset.key);
    }
    count.textContent = shown + ' shown';
    document.querySelectorAll('.chip').forEach((c) => {
      const s = c.dataset.state;
      c.querySelector('b').textContent = s ? all[s] || 0 : known.size;
      if (s === state.value) c.setAttribute('aria-current', 'true'); else c.removeAttribute('aria-current');
    });
  };
  const select = async () => {
    const text = q.value;
    let found = null;
    try {
      if (/^@|[*?[]/.test(text)) found = new Set((await (await fetch(base + '/names?q=' + encodeURIComponent(text))).json()).map((s) => s[0]));
    } catch {
      connected(false);
      return;
    }
    if (q.value !== text) return;
    selected = found;
    tally();
  };
  const address = () => {
    const now = new URLSearchParams();
    for (const f of [q, state, order, by]) if (f.value) now.set(f.name, f.value);
    history.replaceState(null, '', base + '/' + (String(now) && '?' + now) + location.hash);
  };
  const put = (name, html) => {
    const next = parse('<table><tbody>' + html + '</tbody></table>').querySelector('tr');
    if (!next) return false;
    const old = known.get(name);
    known.set(name, next);
    filter(next);
    if (name === picked) next.classList.add('picked');
    if (!old || !old.isConnected) return true;
    const focus = focusIn(old, next);
    old.replaceWith(next);
    if (focus) focus();
    return keyOf(old) !== keyOf(next) || old.dataset.g !== next.dataset.g;
  };
  // Puts the rows in order, below their headings.
  const arrange = () => {
    const there = new Set(names);
    for (const name of [...known.keys()]) if (!there.has(name)) known.delete(name);
    const sorted = names.map((name) => known.get(name)).filter(Boolean);
    if (sorts[order.value]) sorted.sort(sorts[order.value]);
    else if (by.value) sorted.sort((a, b) => keys.indexOf(a.classList[0]) - keys.indexOf(b.classList[0]));
    const groups = new Map();
    for (const row of sorted) {
      const key = keyOf(row);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(row);
    }
    const focus = document.activeElement;
    const inOrder = [...groups.keys()].sort(by.value ? (a, b) => !a - !b || (a < b ? -1 : 1) : (a, b) => keys.indexOf(a) - keys.indexOf(b));
    for (const [key, d] of sections) if (!groups.has(key)) { d.remove(); sections.delete(key); }
    for (const key of inOrder) {
      const d = section(key);
      if (list.lastElementChild !== d) list.append(d);
      const body = d.querySelector('tbody');
      let at = body.firstElementChild;
      for (const row of groups.get(key)) {
        if (row === at) at = at.nextElementSibling; else body.insertBefore(row, at);
      }
      while (at) { const next = at.nextElementSibling; at.remove(); at = next; }
    }
    list.querySelectorAll(':scope > p').forEach((p) => p.remove());
    if (focus !== document.activeElement && list.contains(focus)) focus.focus({preventScroll: true});
  };
  if (list) {
    for (const d of list.querySelectorAll('details')) {
      sections.set(d.dataset.key, d);
      d.open = !folded.has(d.dataset.key);
      fold(d);
    }
    for (const row of list.querySelectorAll('tr[data-name]')) known.set(row.dataset.name, row);
    names = [...known.keys()];
    let full = !q.value && !state.value && !order.value && !by.value;
    const change = () => {
      if (!full) { full = true; open(0); } // the server has left rows out
      select();
      address();
    };
    by.addEventListener('change', () => { for (const d of sections.values()) d.remove(); sections.clear(); change(); arrange(); tally(); });
    q.addEventListener('input', change);
    q.form.addEventListener('submit', (e) => { e.preventDefault(); change(); });
    document.addEventListener('click', (e) => {
      const link = e.target.closest('a');
      if (!link || e.ctrlKey || e.metaKey || e.shiftKey) return;
      if (link.classList.contains('chip')) {
        e.preventDefault();
        state.value = link.dataset.state;
        change();
      } else if (link.dataset.order !== undefined) {
        e.preventDefault();
        order.value = link.dataset.order;
        list.querySelectorAll('.heads a').forEach((a) => { if (a === link && order.value) a.setAttribute('aria-current', 'true'); else a.removeAttribute('aria-current'); });
        change(); arrange(); tally();
      }
    });
    list.addEventListener('click', (e) => {
      const row = e.target.closest('tr[data-name]');
      if (!row || e.ctrlKey || e.metaKey || e.shiftKey || e.button || getSelection().toString()) return;
      if (e.target.closest('a') && e.detail === 0) return; // Enter on the link opens the page of the service
      e.preventDefault();
      location.hash = encodeURIComponent(row.dataset.name);
    });
    q.form.querySelector('button').hidden = true; // it is for pages without scripts
    select();
  }

  // The panel beside the list.
  let unfollow = () => {};
  const show = async (name, query) => {
    unfollow();
    unfollow = () => {};
    picked = name;
    panel.hidden = !name;
    rows.classList.toggle('narrow', !!name && innerWidth > 700);
    for (const row of known.values()) row.classList.toggle('picked', row.dataset.name === name);
    panel.replaceChildren();
    if (!name) return;
    let ask = query || '';
    const url = () => base + '/service/' + encodeURIComponent(name) + ask;
    try {
      const detail = (await get(url())).getElementById('detail');
      if (picked !== name || !detail) return;
      times(detail);
      panel.append(make('button', {type: 'button', className: 'close', textContent: 'Close', onclick: close}), detail);
      panel.scrollTop = 0;
      unfollow = follow(panel, '');
      again(panel.querySelector('[data-again]'), url, () => picked === name && panel.contains(detail));
    } catch {
      panel.append(make('p', {className: 'alert', textContent: 'This service is not known any more, or hinit web does not answer.'}), make('button', {type: 'button', textContent: 'Close', onclick: close}));
    }
  };
  const close = () => { history.pushState(null, '', location.pathname + location.search); show(''); };
  if (panel) {
    const hashed = () => { const name = decodeURIComponent(location.hash.slice(1)); if (name !== picked) show(name); };
    addEventListener('hashchange', hashed);
    if (location.hash.length > 1) hashed();
    panel.addEventListener('click', (e) => {
      const link = e.target.closest('.spans a');
      if (link) { e.preventDefault(); show(picked, link.getAttribute('href')); }
    });
  }

  // News from the server.
  let version = rows ? Number(rows.dataset.version) : 0;
  let source = null;
  const take = (d) => {
    if (list) {
      let moved = !!d.order;
      for (const name in d.rows || {}) moved = put(name, d.rows[name]) || moved;
      if (d.order) names = d.order;
      if (moved || d.rows && order.value) arrange();
      if (d.head) byId('head').replaceChildren(parse(d.head));
      if (moved) select(); else if (d.rows) tally();
    } else if (d.rows && d.rows[rows.dataset.only]) {
      const row = parse('<table><tbody>' + d.rows[rows.dataset.only] + '</tbody></table>').querySelector('tr');
      const shown = byId('state-now');
      if (row && shown) {
        shown.className = 'state ' + row.classList[0];
        shown.replaceChildren(...row.querySelector('.state').childNodes);
      }
    }
    version = d.version;
    fresh();
  };
  const open = (from) => {
    if (source) source.close();
    version = from;
    const only = list ? '' : '&only=' + encodeURIComponent(rows.dataset.only);
    source = new EventSource(rows.dataset.live + '?version=' + from + only);
    source.onopen = () => connected(true);
    source.addEventListener('rows', (e) => take(JSON.parse(e.data)));
    source.onerror = () => {
      connected(false);
      if (source.readyState === EventSource.CLOSED) setTimeout(() => open(version), 5000);
    };
  };
  if (rows && window.EventSource) open(list && (q.value || state.value || order.value || by.value) ? 0 : version);
  const part = document.querySelector('main [data-again]');
  if (part) again(part, () => location.href, () => part.isConnected);
  if (!panel) follow(document, location.search);

  // The palette: services, pages and commands by name.
  const pages = [...document.querySelectorAll('.bar nav a')].map((a) => ({text: 'Go to ' + a.textContent, run: () => { location.href = a.href; }}));
  const tellHinit = (verb, name) => {
    const path = name[0] === '@' ? '/group/' + encodeURIComponent(name.slice(1)) : '/service/' + encodeURIComponent(name);
    const form = make('form', {method: verb === 'stop' ? 'get' : 'post', action: base + path + '/' + verb}, make('button', {}));
    if (verb === 'stop') form.dataset.ask = 'Stop ' + name + '? It stays down until somebody starts it.';
    form.hidden = true;
    document.body.append(form);
    form.requestSubmit();
  };
  const palette = async () => {
    if (byId('palette')) return;
    let at = 0;
    let hits = [];
    let all = pages;
    const input = make('input', {type: 'text', placeholder: 'A service, a page, or start, stop, restart and a service', autocomplete: 'off', ariaLabel: 'Find or do'});
    const found = make('ul', {role: 'listbox'});
    const box = make('dialog', {id: 'palette', onclose: () => box.remove()}, input, found);
    const draw = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      hits = all.filter((c) => words.every((w) => c.text.toLowerCase().includes(w))).slice(0, 50);
      at = Math.max(0, Math.min(at, hits.length - 1));
      found.replaceChildren(...hits.map((c, i) => {
        const li = make('li', {role: 'option', ariaSelected: String(i === at), onclick: () => { box.close(); c.run(); }});
        if (c.look) li.append(make('span', {className: c.look, textContent: word[c.look][0]}));
        li.append(c.text);
        return li;
      }));
      const now = found.children[at];
      if (now) now.scrollIntoView({block: 'nearest'});
    };
    input.addEventListener('input', () => { at = 0; draw(); });
    input.addEventListener('keydown', (e) => {
      if (e.key === 'ArrowDown') at++;
      else if (e.key === 'ArrowUp') at--;
      else if (e.key === 'Enter') { if (hits[at]) { box.close(); hits[at].run(); } } else return;
      e.preventDefault();
      draw();
    });
    document.body.append(box);
    box.showModal();
    draw();
    try {
      const list = await (await fetch(base + '/names')).json();
      list.sort((a, b) => keys.indexOf(a[1]) - keys.indexOf(b[1]));
      const groups = [...new Set(list.map((s) => s[2]).filter(Boolean))].sort();
      const verbs = control === 'true' ? ['restart', 'stop', 'start'] : [];
      all = [
        ...list.map(([name, look]) => ({text: name, look, run: () => { if (panel) location.hash = encodeURIComponent(name); else location.href = base + '/service/' + encodeURIComponent(name); }})),
        ...pages,
        ...groups.map((name) => ({text: '@' + name, run: () => { location.href = base + '/group/' + encodeURIComponent(name); }})),
        ...verbs.flatMap((verb) => groups.map((name) => ({text: verb + ' @' + name, run: () => tellHinit(verb, '@' + name)}))),
        ...list.map(([name]) => ({text: 'log of ' + name, run: () => { location.href = base + '/service/' + encodeURIComponent(name) + '/log'; }})),
        ...verbs.flatMap((verb) => list.map(([name]) => ({text: verb + ' ' + name, run: () => tellHinit(verb, name)}))),
      ];
      draw();
    } catch { /* the pages are found all the same */ }
  };
  const find = byId('find');
  find.hidden = false;
  find.addEventListener('click', palette);
  addEventListener('keydown', (e) => {
    const typing = e.target.closest && e.target.closest('input, select, textarea, dialog');
    if ((e.ctrlKey || e.metaKey) && e.key === 'k') { e.preventDefault(); palette(); } else if (!typing && e.key === '/' && q) { e.preventDefault(); q.focus(); } else if (!typing && e.key === 'Escape' && picked) close(); else if (!typing && list && (e.key === 'j' || e.key === 'k')) {
      const links = [...list.querySelectorAll('details[open] tbody tr:not([hidden]) th a')];
      const i = links.indexOf(document.activeElement);
      const to = links[Math.max(0, Math.min(links.length - 1, i + (e.key === 'j' ? 1 : -1)))];
      if (to) to.focus();
    }
  });
  document.querySelectorAll('.bar nav a').forEach((a) => { if (a.pathname === location.pathname) a.setAttribute('aria-current', 'page'); });
  fresh();
})();
