// Elements. Text reaches the page only as text nodes, so nothing that a peer wrote is markup.

/**
 * Makes an element. Attributes: a text; `true` for an empty attribute; `false` and `null` leave it
 * out; a function under `onclick` and the like listens. Children may be nested arrays.
 */
export function el(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (typeof value === 'function') {
      node.addEventListener(key.slice(2), value);
    } else if (value !== false && value !== null && value !== undefined) {
      node.setAttribute(key, value === true ? '' : String(value));
    }
  }
  append(node, children);
  return node;
}

/** Replaces the children of a node. */
export function replace(node, ...children) {
  const fragment = document.createDocumentFragment();
  append(fragment, children);
  node.replaceChildren(fragment);
}

/**
 * Replaces controls. The focus stays at its control, or goes to the button at the same place if
 * that control is gone.
 */
export function replaceControls(node, ...children) {
  const focused = document.activeElement;
  const place = [...node.querySelectorAll('button')].indexOf(focused);
  replace(node, ...children);
  if (place >= 0) {
    const buttons = [...node.querySelectorAll('button')];
    (buttons.includes(focused) ? focused : buttons[place] ?? buttons.at(-1))?.focus();
  }
}

/** Sets the text of a node if it differs, so that a screen reader does not repeat it. */
export function setText(node, text) {
  if (node.textContent !== String(text)) {
    node.textContent = text;
  }
}

/** A state in words, with a mark: `kind` is ok, busy, warn, bad or off. */
export function mark(kind, text) {
  return el('span', { class: `mark ${kind}` }, text);
}

/** The head of a page: the heading, facts beside it, and actions at the right. */
export function head(title, facts, actions) {
  return el('header', { class: 'head' },
    el('h1', { tabindex: '-1' }, title),
    facts && el('div', { class: 'facts' }, facts),
    actions && el('div', { class: 'actions' }, actions));
}

/** Key figures: pairs of a label and a value, which is text or a node. */
export function figures(pairs) {
  return el('dl', { class: 'figures' }, pairs.map(([label, value, hint]) =>
    el('div', {}, el('dt', {}, label), el('dd', {}, value),
      hint && el('dd', { class: 'hint' }, hint))));
}

/** A section with a heading of the second level. */
export function panel(title, ...children) {
  return el('section', { class: 'panel' }, el('h2', {}, title), children);
}

/** Text for screen readers alone, such as what a button that repeats in each row is about. */
export function unseen(text) {
  return el('span', { class: 'unseen' }, text);
}

/**
 * Keeps nodes by name: a button in a row that is updated stays the same one, so that no click on it
 * is lost.
 */
export function keeper() {
  const nodes = new Map();
  return (name, make) => nodes.get(name) ?? nodes.set(name, make()).get(name);
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) {
      node.append(child instanceof Node ? child : String(child));
    }
  }
}
