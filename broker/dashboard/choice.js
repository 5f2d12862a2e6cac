// The choice of a group, kept while the reader goes from page to page.

import { ask } from './ask.js';
import { el } from './dom.js';

const DEFAULT = 'crawlers';
let chosen = null;

/** Chooses a group for the pages that show one, such as that which the reader has just seen. */
export function remember(group) {
  chosen = group;
}

/**
 * Makes the choice of a group. `label(name)` gives what its option says; `show(name)` is called
 * with the group that is chosen, at first and with each change. Resolves to the node.
 */
export async function groupChoice({ label = name => name, show }, signal) {
  const { groups } = await ask('/groups', { signal });
  if (groups.length === 0) {
    return el('p', { class: 'empty' }, 'There is no group yet.');
  }
  if (!groups.includes(chosen)) {
    chosen = groups.includes(DEFAULT) ? DEFAULT : groups[0];
  }
  const select = el('select', {
    id: 'group', onchange: () => {
      chosen = select.value;
      show(chosen);
    },
  }, groups.map(name => el('option', { value: name, selected: name === chosen }, label(name))));
  show(chosen);
  return el('div', { class: 'search' }, el('label', { for: 'group' }, 'Group'), select);
}
