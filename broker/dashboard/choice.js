// The choice of a group, kept while the reader goes from page to page.

import { ask } from './ask.js';
import { el, head, replace } from './dom.js';
import { untilAnswer } from './live.js';

const DEFAULT = 'crawlers';
let chosen = null;

/** Chooses a group for the pages that show one, such as that which the reader has just seen. */
export function remember(group) {
  chosen = group;
}

/**
 * Makes a page for one group at a time. `show(group, {place, facts}, signal)` fills it, at first
 * and with each change of the choice, which aborts the signal of the group before. `label`: what
 * the option of a name says, as a function or a promise of one.
 */
export async function groupPage(main, title, { label = name => name, show }, signal) {
  const facts = el('span', {});
  const place = el('div', { class: 'panel' });
  main.append(head(title, facts));
  const [{ groups }, text] = await Promise.all([ask('/groups', { signal }), label]);
  if (groups.length === 0) {
    main.append(el('p', { class: 'empty' }, 'There is no group yet.'));
    return;
  }
  if (!groups.includes(chosen)) {
    chosen = groups.includes(DEFAULT) ? DEFAULT : groups[0];
  }
  let shown = null;
  const draw = () => {
    shown?.abort();
    shown = new AbortController();
    const part = AbortSignal.any([signal, shown.signal]);
    facts.textContent = '';
    show(chosen, { place, facts }, part).catch(async error => {
      if (part.aborted) {
        return;
      }
      replace(place, el('p', { class: 'error' }, error.message));
      if (error.code === 'away') {
        await untilAnswer(part);
        if (!part.aborted) {
          draw();
        }
      }
    });
  };
  const select = el('select', {
    id: 'group', onchange: () => {
      chosen = select.value;
      draw();
    },
  }, groups.map(name => el('option', { value: name, selected: name === chosen }, text(name))));
  main.append(
    el('div', { class: 'search' }, el('label', { for: 'group' }, 'Group'), select), place);
  draw();
}
