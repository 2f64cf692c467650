'use strict';
// The page of experiments/view.py: filters, the list, one trajectory.
// Texts become text nodes only; nothing is ever parsed as HTML.
(() => {
  const PAGE_SIZE = 200; // entries of the list that are made at a time
  const BACKGROUNDS = [0.9, 0.5, 0.1, 0.01]; // probabilities that part them
  const TITLES = {
    system: 'Tools that come on offer', user: 'User', assistant: 'Policy',
    tool: 'Tool result', other: 'Other',
  };
  const FILTERS = ['task', 'step', 'category', 'status', 'low', 'high'];
  const byId = (id) => document.getElementById(id);
  const read = (id) => JSON.parse(byId(id).textContent);
  const {rows, ids, texts} = read('index');
  let found = [...rows.keys()]; // rows that pass the filters
  let current = -1; // index into rows
  let shown = 0; // entries of the list

  function make(tag, className, ...children) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    node.append(...children.filter((c) => c !== null));
    return node;
  }

  function button(className, action, ...children) {
    const node = make('button', className, ...children);
    node.type = 'button';
    node.addEventListener('click', action);
    return node;
  }

  const outcome = (row) =>
    row.right === row.turns ? 'right' : row.right ? 'partly' : 'wrong';
  const mark = (row) => ({right: '✓', partly: '◐', wrong: '✗'})[outcome(row)];
  const rounded = (x, n) => // no minus before a zero
    x.toFixed(n).replace(/^-(?=[0.]*$)/, '').replace('-', '−');
  const plural = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;

  // Filters.

  function fillSelect(id, key, words) {
    const counts = new Map();
    for (const row of rows) counts.set(row[key], (counts.get(row[key]) || 0) + 1);
    const values = [...counts.keys()];
    if (key === 'step') values.sort((a, b) => a - b);
    else values.sort();
    byId(id).append(new Option(words, ''));
    for (const v of values) byId(id).append(new Option(`${v} (${counts.get(v)})`, v));
  }

  const limit = (id, otherwise) =>
    byId(id).value === '' ? otherwise : Number(byId(id).value);

  function filter() {
    const words = byId('task').value.toLowerCase().split(/\s+/).filter(Boolean);
    const low = limit('low', -Infinity) - 1e-9, high = limit('high', Infinity) + 1e-9;
    found = [...rows.keys()].filter((i) => {
      const row = rows[i], task = row.task.toLowerCase();
      return words.every((word) => task.includes(word)) &&
        row.reward >= low && row.reward <= high &&
        ['step', 'category', 'status'].every((key) =>
          byId(key).value === '' || byId(key).value === String(row[key]));
    });
    byId('list').replaceChildren();
    shown = 0;
    extendList(Math.max(PAGE_SIZE, found.indexOf(current) + 1));
    byId('count').textContent =
      `${found.length} of ${plural(rows.length, 'trajectory').replace('ys', 'ies')}`;
    saveAddress();
  }

  // The list.

  function extendList(size) {
    const part = document.createDocumentFragment();
    for (const i of found.slice(shown, shown + size)) part.append(entry(i));
    shown = Math.min(found.length, shown + size);
    byId('list').append(part);
    byId('more').hidden = shown === found.length;
    byId('more').textContent = `${found.length - shown} more`;
  }

  function entry(i) {
    const row = rows[i];
    const limitHit = row.status === 'DONE' ? null : make('span', 'limit', ` · ${row.status}`);
    const node = button('', () => open(i, true),
      make('span', 'top',
        make('span', `badge ${outcome(row)}`, `${mark(row)} ${row.right}/${row.turns}`),
        make('span', 'id', row.task)),
      make('span', 'sub',
        `step ${row.step} · sample ${row.sample} · ${row.category}`, limitHit));
    node.dataset.row = i;
    if (i === current) node.setAttribute('aria-current', 'true');
    return make('li', '', node);
  }

  function markCurrent() {
    for (const node of byId('list').querySelectorAll('[aria-current]')) {
      node.removeAttribute('aria-current');
    }
    const node = byId('list').querySelector(`[data-row="${current}"]`);
    if (!node) return;
    node.setAttribute('aria-current', 'true');
    const pane = node.closest('nav'), box = node.getBoundingClientRect();
    const frame = pane.getBoundingClientRect();
    if (pane.scrollHeight > pane.clientHeight &&
        (box.top < frame.top || box.bottom > frame.bottom)) {
      pane.scrollTop += box.top - frame.top - frame.height / 3;
    }
  }

  function step(by) {
    const place = found.indexOf(current);
    // From a trajectory that the filters hide, go to the nearest one after it.
    const after = found.findIndex((i) => i > current);
    const next = place >= 0 ? place + by : after < 0 ? found.length - 1 : after;
    if (next < 0 || next >= found.length) return;
    if (next >= shown) extendList(PAGE_SIZE);
    open(found[next], true);
  }

  // One trajectory.

  function open(i, move) {
    current = i;
    document.body.classList.add('open');
    byId('readout').hidden = true;
    const row = rows[i], detail = read(`t${i}`);
    byId('detail').replaceChildren(
      bar(i), make('h2', '', make('span', `badge ${outcome(row)}`, mark(row)), ` ${row.task}`),
      facts(row, detail), group(row), legend(detail),
      ...detail.turns.map((turn, n) => turnSection(detail, turn, n)),
      ...wholeRow(detail));
    markCurrent();
    saveAddress();
    if (move) {
      byId('detail').focus({preventScroll: true});
      const top = byId('detail').getBoundingClientRect().top;
      if (top < 0 || top > innerHeight / 2) scrollBy(0, top - 8);
    }
  }

  function bar(i) {
    const place = found.indexOf(i);
    const back = button('', close, '← List');
    back.id = 'back';
    const previous = button('', () => step(-1), 'Previous');
    const next = button('', () => step(1), 'Next');
    previous.disabled = place <= 0;
    next.disabled = place === found.length - 1;
    const where = place < 0 ? 'not among the filtered' : `${place + 1} of ${found.length}`;
    return make('div', 'bar', back, previous, next, make('span', 'facts', where));
  }

  function close() {
    document.body.classList.remove('open');
    byId('readout').hidden = true;
    const node = byId('list').querySelector('[aria-current]');
    if (node) node.focus();
  }

  function facts(row, detail) {
    const words = [
      `reward ${rounded(row.reward, 3)}`,
      `${row.right} of ${plural(row.turns, 'turn')} right`, `status ${row.status}`,
      `category ${row.category}`, `step ${row.step}`,
      row.epoch === null ? null : `epoch ${row.epoch}`, `sample ${row.sample}`,
      row.tokens === null ? null : `${plural(row.tokens, 'token')}, ${row.sampled} sampled`,
    ];
    if (detail.logprobs && detail.logprobs.length) {
      const mean = sum(detail.logprobs) / detail.logprobs.length;
      words.push(`mean logprob ${rounded(mean, 3)}`);
    }
    return make('p', 'facts', ...words.filter(Boolean).map((w) => make('span', '', w)));
  }

  const sum = (values) => values.reduce((a, b) => a + (b || 0), 0);

  function group(row) {
    const same = [...rows.keys()].filter(
      (i) => rows[i].step === row.step && rows[i].task === row.task);
    const mean = sum(same.map((i) => rows[i].reward)) / same.length;
    const variance = sum(same.map((i) => (rows[i].reward - mean) ** 2)) / same.length;
    const words = `Group: mean ${rounded(mean, 3)}, variance ${rounded(variance, 3)}`;
    const items = same.map((i) => {
      const node = button(outcome(rows[i]), () => open(i, true), rounded(rows[i].reward, 2));
      node.setAttribute('aria-label', `sample ${rows[i].sample}, reward ${rows[i].reward}`);
      if (i === current) node.setAttribute('aria-current', 'true');
      return make('li', '', node);
    });
    return make('ul', 'group', make('li', 'label', words), ...items);
  }

  function legend(detail) {
    if (!detail.row) return make('p', 'facts', 'The log has no tokens of this trajectory.');
    const names = ['at least 0.9', 'below 0.9', 'below 0.5', 'below 0.1', 'below 0.01'];
    return make('ul', 'legend tokens-legend', make('li', '', 'Probability of a sampled token:'),
      ...names.map((name, n) => make('li', '', make('span', `token p${n}`, name))));
  }

  function turnSection(detail, turn, n) {
    const verdict = turn.right ?
      make('span', 'verdict right', '✓ right') : make('span', 'verdict wrong', '✗ wrong');
    const events = detail.events.filter((event) => event.turn === n);
    return make('section', 'turn', make('h3', '', `Turn ${n + 1} `, verdict),
      turn.reason ? make('p', 'reason', turn.reason) : null, checks(turn), due(turn),
      ...events.map((event, k) => message(detail, event, resultNumber(events, k))));
  }

  function checks(turn) {
    if (typeof turn.state_ok !== 'boolean') return null;
    return make('p', 'checks',
      make('span', '', `state ${turn.state_ok ? '✓ as the ground truth’s' : '✗ not as the ground truth’s'}`),
      make('span', '', `results ${turn.response_ok ? '✓ all due ones seen' : '✗ not all due ones seen'}`));
  }

  function due(turn) {
    if (!turn.due) return null;
    if (!turn.due.length) return make('p', 'checks', 'No call is due in this turn.');
    const node = make('details', 'due',
      make('summary', '', `${plural(turn.due.length, 'call')} due`),
      make('pre', '', turn.due.join('\n')));
    node.open = !turn.right;
    return node;
  }

  // 'n of m' among the results that answer one message; '' if there is one.
  function resultNumber(events, k) {
    const isTool = (i) => events[i] && events[i].role === 'tool';
    if (!isTool(k)) return '';
    let begin = k, end = k + 1;
    while (isTool(begin - 1)) begin--;
    while (isTool(end)) end++;
    return end - begin > 1 ? ` ${k - begin + 1} of ${end - begin}` : '';
  }

  function message(detail, event, number) {
    const title = make('span', 'role', TITLES[event.role] + number);
    const node = make('div', `message ${event.role}`, title);
    if (event.span) {
      const [begin, end] = event.span;
      const offset = numSampledBefore(detail, begin);
      const part = detail.logprobs.slice(offset, offset + end - begin);
      title.append(` · ${plural(end - begin, 'token')} · logprob ${rounded(sum(part), 2)}`);
      node.append(tokens(detail, begin, end));
    } else if (event.text.trim()) {
      node.append(make('pre', '', event.text));
    }
    if (!event.text.trim()) {
      const silent = event.role === 'assistant' ? 'no call: ends the turn' : 'empty';
      node.append(make('p', 'silent', silent));
    }
    if (event.cut) node.append(make('p', 'silent', `${event.cut} more characters`));
    if (event.role !== 'system') return node;
    const names = event.text.split(' ').length;
    const box = make('details', 'message', make('summary', '', `${plural(names, 'tool')} come on offer`));
    box.append(make('pre', '', event.text));
    return box;
  }

  // Tokens.

  function numSampledBefore(detail, position) {
    let begin = 0, sampled = 0;
    for (const [k, length] of detail.runs.entries()) {
      const part = Math.min(length, Math.max(0, position - begin));
      if (k % 2) sampled += part;
      begin += length;
    }
    return sampled;
  }

  function shade(logprob) {
    const p = Math.exp(logprob === null ? 0 : logprob);
    return BACKGROUNDS.filter((edge) => p < edge).length;
  }

  // Tokens begin to end of the row, from the runs of given and sampled ones.
  function tokens(detail, begin, end) {
    const box = make('pre', 'tokens');
    let position = 0, sampled = 0;
    for (const [k, length] of detail.runs.entries()) {
      for (let n = 0; n < length; n++, position++) {
        const logprob = k % 2 ? detail.logprobs[sampled++] : undefined;
        if (position >= begin && position < end) {
          box.append(token(detail.row[position], position, logprob));
        }
      }
    }
    box.tabIndex = 0;
    box.setAttribute('aria-label', 'Tokens; left and right arrow walk through them');
    box.addEventListener('focus', () => box.querySelector('.chosen') || choose(box.firstChild));
    box.addEventListener('keydown', walk);
    for (const kind of ['click', 'mouseover']) {
      box.addEventListener(kind, (event) => event.target !== box && choose(event.target));
    }
    return box;
  }

  function token(which, position, logprob) {
    const given = logprob === undefined;
    const node = make('span', given ? 'token given' : `token p${shade(logprob)}`,
      texts[which].replace(/\n/g, '↵\n') || '·');
    node.chosen = () => [
      make('code', '', texts[which] || '(part of a character)'), `id ${ids[which]}`,
      `position ${position}`,
      given ? 'mask 0: given' : 'mask 1: sampled',
      given || logprob === null ? null : `logprob ${rounded(logprob, 4)}`,
      given || logprob === null ? null : `probability ${probability(Math.exp(logprob))}`,
    ];
    return node;
  }

  const probability = (p) => p >= 0.001 ? p.toFixed(3) : p.toExponential(1);

  function choose(node) {
    if (!node || !node.chosen) return;
    for (const old of byId('detail').querySelectorAll('.chosen')) old.classList.remove('chosen');
    node.classList.add('chosen');
    const words = node.chosen().filter((word) => word !== null);
    byId('readout').replaceChildren(...words.map((word) => make('span', '', word)));
    byId('readout').hidden = false;
  }

  function walk(event) {
    const by = {ArrowRight: 'nextSibling', ArrowLeft: 'previousSibling'}[event.key];
    if (!by) return;
    const chosen = event.currentTarget.querySelector('.chosen');
    const next = chosen ? chosen[by] : event.currentTarget.firstChild;
    choose(next);
    if (next) next.scrollIntoView({block: 'nearest'});
    event.preventDefault();
  }

  function wholeRow(detail) {
    if (!detail.row) return [];
    const box = make('details', 'whole',
      make('summary', '', `The whole row, token by token: ${plural(detail.row.length, 'token')}`));
    box.addEventListener('toggle', () => {
      if (!box.open || box.children.length > 1) return;
      const row = tokens(detail, 0, detail.row.length);
      row.classList.add('row');
      box.append(make('p', 'caption', 'Underlined: sampled, and trained on. Grey: given.'), row);
    });
    return [box];
  }

  // The address keeps the filters and the trajectory, for a link.

  function saveAddress() {
    const words = new URLSearchParams();
    for (const id of FILTERS) if (byId(id).value !== '') words.set(id, byId(id).value);
    if (current >= 0) words.set('t', current);
    history.replaceState(null, '', `#${words}`);
  }

  function start() {
    fillSelect('step', 'step', 'all');
    fillSelect('category', 'category', 'all');
    fillSelect('status', 'status', 'all');
    const words = new URLSearchParams(location.hash.slice(1));
    for (const id of FILTERS) byId(id).value = words.get(id) || '';
    const wanted = Number(words.get('t'));
    if (words.has('t') && rows[wanted]) current = wanted;
    filter();
    byId('filters').addEventListener('input', filter);
    byId('filters').addEventListener('submit', (event) => event.preventDefault());
    byId('filters').addEventListener('reset', () => setTimeout(filter));
    byId('more').addEventListener('click', () => extendList(PAGE_SIZE));
    document.addEventListener('keydown', shortcut);
    if (current >= 0) {
      open(current, false);
    } else if (found.length) {
      open(found[0], false);
      document.body.classList.remove('open'); // a phone begins with the list
    }
  }

  function shortcut(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /INPUT|SELECT|TEXTAREA/.test(event.target.tagName);
    if (event.key === 'Escape') {
      if (typing) event.target.blur();
      else close();
    } else if (!typing && event.key === '/') {
      document.body.classList.remove('open');
      byId('task').focus();
      event.preventDefault();
    } else if (!typing && (event.key === 'j' || event.key === 'k')) {
      step(event.key === 'j' ? 1 : -1);
    }
  }

  start();
})();
