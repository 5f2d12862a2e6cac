// Tables: sortable, with filter and selection, updated in place so that focus and selection stay.

import { el, replace } from './dom.js';
import { count } from './format.js';

let tables = 0;

/**
 * Makes a table. `columns`: `{title, text, sort, number}`, where `text` gives the content of a cell
 * and `sort` the value to sort by. Further options: `filter` and `select` (booleans), and
 * `onSelect`, called with the selected keys when they change.
 */
export function table({ caption, columns, key, empty, filter, select, onSelect }) {
  tables += 1;
  const id = `table-${tables}`;
  const rows = new Map();
  const chosen = new Set();
  const order = { column: -1, sign: 1 };
  let data = [];
  const body = el('tbody', {});
  const headers = columns.map((column, index) => header(column, () => {
    order.sign = order.column === index ? -order.sign : 1;
    order.column = index;
    draw();
  }));
  const all = el('input', {
    type: 'checkbox', 'aria-label': 'Select all rows that are shown', onchange: () => {
      shown().forEach(row => chosen[all.checked ? 'add' : 'delete'](key(row)));
      draw();
      onSelect?.(selected());
    },
  });
  const search = el('input', {
    id: `${id}-filter`, type: 'search', autocomplete: 'off', spellcheck: 'false', oninput: () => {
      draw();
      const part = `${count(body.childElementCount)} of ${count(data.length)}`;
      replace(found, search.value ? part : null);
    },
  });
  const found = el('span', { class: 'hint', role: 'status' });
  // Whether there are rows is not known before the first update.
  const nothing = el('p', { class: 'empty', hidden: true });
  const titles = el('thead', { hidden: true }, el('tr', {},
    select && el('th', { scope: 'col', class: 'select' }, all), headers.map(each => each.node)));
  const box = el('div', { class: 'table-box', role: 'group', 'aria-labelledby': `${id}-caption` },
    el('table', {},
      el('caption', { id: `${id}-caption` }, caption),
      titles,
      body));
  const after = el('div', { class: 'more' });
  const node = el('div', { class: 'table' },
    filter && el('div', { class: 'filter' },
      search, el('label', { for: `${id}-filter` }, 'Filter'), found),
    box, nothing, after);
  scrollable(box);

  function shown() {
    const wanted = search.value.trim().toLowerCase();
    const matches = data.filter(row => !wanted || words(rows.get(key(row))).includes(wanted));
    const by = columns[order.column]?.sort;
    return by ? matches.sort((a, b) => compare(by(a), by(b), order.sign)) : matches;
  }

  function draw() {
    const visible = shown();
    const focused = document.activeElement;
    arrange(body, visible.map(row => rows.get(key(row))));
    if (focused !== document.activeElement && body.contains(focused)) {
      focused.focus({ preventScroll: true });
    }
    headers.forEach((each, index) => each.set(order.column === index ? order.sign : 0));
    visible.forEach(row => {
      const check = rows.get(key(row)).querySelector('.select input');
      if (check) {
        check.checked = chosen.has(key(row));
      }
    });
    const ticked = visible.filter(row => chosen.has(key(row))).length;
    all.checked = ticked > 0 && ticked === visible.length;
    all.indeterminate = ticked > 0 && ticked < visible.length;
    titles.hidden = data.length === 0;
    replace(nothing, data.length === 0 ? empty : visible.length === 0 ? 'No row matches.' : null);
    nothing.hidden = visible.length > 0;
  }

  function update(next, { more = null } = {}) {
    data = [...next];
    const keys = new Set(data.map(key));
    for (const old of [...rows.keys()].filter(each => !keys.has(each))) {
      rows.delete(old);
      chosen.delete(old);
    }
    for (const row of data) {
      const name = key(row);
      if (!rows.has(name)) {
        rows.set(name, line(columns, select && checkbox(name)));
      }
      const tr = rows.get(name);
      fill(tr, columns, row, select ? 1 : 0);
      // A key may be a number that says nothing.
      const label = `Select ${tr.cells[1].textContent}`;
      tr.querySelector('.select input')?.setAttribute('aria-label', label);
    }
    draw();
    if (!more || !after.firstChild) {
      replace(after, more && el('button', { type: 'button', onclick: () => continueList() },
        'Show more'));
    }
    continueList = more;
  }
  let continueList = null;

  const checkbox = name => el('input', {
    type: 'checkbox', onchange: event => {
      chosen[event.target.checked ? 'add' : 'delete'](name);
      draw();
      onSelect?.(selected());
    },
  });
  const selected = () => [...chosen];
  return { node, update, selected };
}

function header({ title, sort, number }, onSort) {
  const attributes = { scope: 'col', class: number ? 'number' : null };
  if (!sort) {
    return { node: el('th', attributes, title), set: () => {} };
  }
  const node = el('th', attributes, el('button', { type: 'button', onclick: onSort }, title));
  const set = sign => {
    if (sign) {
      node.setAttribute('aria-sort', sign > 0 ? 'ascending' : 'descending');
    } else {
      node.removeAttribute('aria-sort');
    }
  };
  return { node, set };
}

function line(columns, check) {
  return el('tr', {},
    check && el('td', { class: 'select' }, check),
    columns.map(({ title, number }, index) => el(index === 0 ? 'th' : 'td', {
      scope: index === 0 ? 'row' : null, class: number ? 'number' : null, 'data-title': title,
    })));
}

// Only cells that differ are changed. The control with the focus is found again by its name.
function fill(tr, columns, row, offset) {
  columns.forEach(({ text }, index) => {
    const cell = tr.children[index + offset];
    if (cell.querySelector('button:active, button.runs')) {
      // A button that is pressed, or that works, must stay.
      return;
    }
    const content = text(row);
    if (!(content instanceof Node)) {
      const shown = String(content ?? '');
      if (cell.textContent !== shown || cell.firstElementChild) {
        cell.textContent = shown;
      }
    } else if (content !== cell.firstChild &&
      (!cell.firstChild?.isEqualNode(content) || cell.querySelector('button'))) {
      const focused = cell.contains(document.activeElement) && document.activeElement;
      cell.replaceChildren(content);
      if (focused) {
        [...cell.querySelectorAll('a, button, input')]
          .find(each => each.textContent === focused.textContent)?.focus({ preventScroll: true });
      }
    }
  });
}

// What the filter searches: all cells but those with controls.
const words = tr => [...tr.children].filter(cell => !cell.querySelector('button, input'))
  .map(cell => cell.textContent.toLowerCase()).join(' ');

// Puts the rows in order and moves only those that stand elsewhere.
function arrange(body, wanted) {
  const keep = new Set(wanted);
  [...body.children].filter(row => !keep.has(row)).forEach(row => row.remove());
  wanted.forEach((row, index) => {
    if (body.children[index] !== row) {
      body.insertBefore(row, body.children[index] ?? null);
    }
  });
}

// Unknown values come last in both directions.
function compare(a, b, sign) {
  const missing = value => value === null || value === undefined;
  if (missing(a) || missing(b)) {
    return missing(a) - missing(b);
  }
  const isText = typeof a === 'string' && typeof b === 'string';
  return sign * (isText ? a.localeCompare(b, 'en', { numeric: true }) : (a > b) - (a < b));
}

// A box that scrolls sideways must be reachable by keyboard; one that does not is no stop.
function scrollable(box) {
  new ResizeObserver(() => {
    if (box.scrollWidth > box.clientWidth + 1) {
      box.tabIndex = 0;
    } else {
      box.removeAttribute('tabindex');
    }
  }).observe(box);
}
