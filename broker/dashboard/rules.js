// Rules of a group for hosts: block, pause or slow down, with a note and an end.

import { ask, walk } from './ask.js';
import { button, confirm, filled, form, refreshed } from './actions.js';
import { keeper, unseen } from './dom.js';
import { milliseconds } from './events.js';
import { duration, oneWord, visible } from './format.js';
import { table } from './table.js';

const KINDS = [
  ['block', 'Block: no request, and what waits ends as blocked'],
  ['pause', 'Pause: no request, and what waits stays'],
  ['slow', 'Slow down: another delay, or fewer requests at once'],
];
const TITLES = { block: 'Block', pause: 'Pause', slow: 'Slow down' };

const address = (group, key) =>
  `/groups/${encodeURIComponent(group)}/rules/${encodeURIComponent(key)}`;

/** What a rule does, as words. */
export function ruleText({ block, pause, delay, parallel }) {
  return [
    block && 'blocked', pause && 'paused', delay && `delay ${delay}`,
    parallel && `${parallel} at once`,
  ].filter(Boolean).join(', ');
}

/** When a rule ends by itself; `null` if it does not. */
export function endText({ left }) {
  return left ? `in ${duration(milliseconds(left))}` : null;
}

// A note is one word of ASCII, so everything else in it is percent-encoded.
const encodeNote = note => note.replace(/[^!-$&-~]/gu, encodeURIComponent);

/** The note of a rule as text. */
export function noteText(note) {
  try {
    return oneWord(decodeURIComponent(note ?? ''));
  } catch {
    return oneWord(note);
  }
}

/** The rule that counts for a key: its own, or the longest `*.` above it, or `null`. */
export async function ruleOf(group, key, signal) {
  let best = null;
  const path = `/groups/${encodeURIComponent(group)}/rules`;
  for await (const { rules } of walk(path, { signal, query: { limit: 1000 } })) {
    for (const rule of rules) {
      const host = rule.key.startsWith('*.') ? rule.key.slice(2) : null;
      if (rule.key === key) {
        return rule;
      }
      if (host !== null && (key === host || key.endsWith(`.${host}`)) &&
        host.length > (best?.key.length ?? 0) - 2) {
        best = rule;
      }
    }
  }
  return best;
}

/**
 * Asks for a rule and sets it. Without `key` or `kind` the reader says which. Resolves to what the
 * rule does, or `null` if the reader cancelled.
 */
export async function setRule(group, { key, kind, text }) {
  const isSlow = kind === 'slow' || !kind;
  const values = await form({
    title: key ? `${TITLES[kind]} ${visible(key)}` : 'Add a rule',
    text,
    fields: [
      !key && {
        name: 'key', label: 'Host', required: true,
        hint: 'example.org is this host alone; *.example.org is it and every name below it.',
      },
      !kind && {
        name: 'kind', label: 'What happens', type: 'select', value: 'block', options: KINDS,
      },
      isSlow && {
        name: 'delay', label: 'Delay', required: kind === 'slow', value: kind && '30s',
        hint: 'Between the end of a request and the next, such as 30s; to slow down only.',
      },
      isSlow && {
        name: 'parallel', label: 'Requests at once', type: 'number', hint: 'To slow down only.',
      },
      {
        name: 'for', label: 'Ends after',
        hint: 'Such as 2h or 7d. Empty: the rule stays until an operator ends it.',
      },
      {
        name: 'note', label: 'Note', hint: 'For operators, such as the number of a complaint.',
      },
    ].filter(Boolean),
    action: kind ? TITLES[kind] : 'Set the rule',
    run: async given => {
      const name = key ?? given.key;
      const body = settings(kind ?? given.kind, given);
      await ask(address(group, name), { method: 'PUT', body });
    },
  });
  return values && ruleText(settings(kind ?? values.kind, values));
}

function settings(kind, { delay, parallel, for: time, note }) {
  const what = kind === 'slow' ? { delay, parallel } : { [kind]: true };
  return filled({ ...what, for: time, note: encodeNote(note) });
}

/** Ends a rule after a question. Resolves to a sentence, or `undefined` if the reader cancelled. */
export async function endRule(group, key) {
  const text = 'Requests may begin at once. URLs that ended as blocked are not fetched again.';
  if (await confirm({ title: `End the rule of ${visible(key)}?`, text, action: 'End the rule' })) {
    await ask(address(group, key), { method: 'DELETE' });
    return `The rule of ${visible(key)} has ended.`;
  }
  return undefined;
}

/** A table of rules with a button that ends each; `onEnd` is called after a rule was ended. */
export function rulesTable(group, onEnd) {
  const keep = keeper();
  return table({
    caption: 'Rules for hosts',
    columns: [
      { title: 'Host', text: rule => visible(rule.key), sort: rule => rule.key },
      { title: 'Rule', text: ruleText, sort: ruleText },
      { title: 'Ends', text: rule => endText(rule) ?? 'no end' },
      { title: 'Note', text: rule => noteText(rule.note), sort: rule => noteText(rule.note) },
      {
        title: 'Action', text: rule => keep(rule.key, () => button({
          label: ['End…', unseen(` the rule of ${visible(rule.key)}`)], right: 'admin',
          run: async () => refreshed(await endRule(group, rule.key), onEnd),
        })),
      },
    ],
    key: rule => rule.key, filter: true,
    empty: 'No rule: every host is requested as the group says.',
  });
}
