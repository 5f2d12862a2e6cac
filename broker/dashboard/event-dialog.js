// One event in a dialog, with all that it says.

import { el } from './dom.js';
import { parse } from './events.js';
import { urlLink, visible } from './format.js';

/** Shows an event; `more` comes above its attributes. Returns the dialog. */
export function openEvent({ title, seq, payload }, ...more) {
  const { target, attributes } = parse(payload);
  const object = target === null ? { seq, payload }
    : { seq, target, attributes: Object.fromEntries(attributes) };
  const heading = el('h2', { id: 'event-title', tabindex: '-1' }, title);
  const close = el('button', { type: 'button', onclick: () => node.close() }, 'Close');
  const node = el('dialog', { class: 'event', 'aria-labelledby': 'event-title' },
    heading,
    target && el('p', {}, urlLink(target)),
    more,
    attributes.size > 0 && el('div', { class: 'table-box', tabindex: '0', role: 'group',
      'aria-label': 'Attributes' }, el('table', {},
      el('caption', {}, 'Attributes'),
      el('tbody', {}, [...attributes].map(([name, value]) => el('tr', {},
        el('th', { scope: 'row' }, name), el('td', { class: 'url' }, visible(value))))))),
    target === null && json(payload),
    el('h3', {}, 'As JSON'),
    el('pre', { tabindex: '0' }, pretty(object)),
    el('div', { class: 'buttons' }, close));
  document.body.append(node);
  node.addEventListener('close', () => node.remove());
  node.showModal();
  // The dialog can be longer than the screen and is read from its top.
  heading.focus();
  return node;
}

// A text that is JSON itself, in a form for readers.
function json(payload) {
  try {
    return [el('h3', {}, 'Its content'), el('pre', { tabindex: '0' }, pretty(JSON.parse(payload)))];
  } catch {
    return null;
  }
}

const pretty = value => JSON.stringify(value, null, 2).split('\n').map(visible).join('\n');
