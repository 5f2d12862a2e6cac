// Events with a URL for a group: announce a URL, set a schedule, end one.

import { ask } from './ask.js';
import { filled, form } from './actions.js';
import { visible } from './format.js';
import { may } from './session.js';

/** The topic through which URLs reach a group. */
export function feedOf({ topics = [] }) {
  return topics.includes('new-url') ? 'new-url' : topics[0];
}

/** The first permission that a session lacks of those needed, or the last of them. */
export function rightTo(topic, attribute) {
  const rights = [`pub:${topic}`, attribute].filter(Boolean);
  return rights.find(right => !may(right)) ?? rights.at(-1);
}

/** Publishes one URL with attributes. */
export async function publish(topic, target, attributes) {
  const event = { target, attributes: filled(attributes) };
  await ask(`/topics/${encodeURIComponent(topic)}`, { method: 'POST', body: { events: [event] } });
}

/** The field of a priority. */
export const PRIO = {
  name: 'prio', label: 'Priority',
  hint: 'From -1000 to 1000; on its host, a higher one is fetched first. URLs without one have 0.',
};

/** Asks for a URL and announces it. Resolves to a sentence, or `undefined`. */
export async function announce(group, url = '') {
  const topic = feedOf(group);
  const values = await form({
    title: 'Announce a URL',
    text: `It is published on ${topic}, and fetched by the group ${group.group}.`,
    fields: [
      { name: 'url', label: 'URL', type: 'url', value: url, required: true },
      {
        name: 'after', label: 'Not before',
        hint: 'A time from now such as 10m, or of the day in UTC such as 06:00.',
      },
      may('prio') && PRIO,
    ].filter(Boolean),
    action: 'Announce',
    run: ({ url: target, after, prio }) => publish(topic, target, { after, prio }),
  });
  return values ? `${visible(values.url)} is announced.` : undefined;
}

const EVERY = {
  name: 'every', label: 'Every', required: true,
  hint: 'An interval such as 30m or 12h, or a time of the day in UTC such as 06:00.',
};

/**
 * Asks for a URL and how often to fetch it, and sets that. Resolves to a sentence, or `undefined`.
 */
export async function schedule(group) {
  const topic = feedOf(group);
  const values = await form({
    title: 'Add a schedule',
    fields: [
      { name: 'url', label: 'URL', type: 'url', required: true },
      EVERY,
      may('prio') && PRIO,
    ].filter(Boolean),
    action: 'Set',
    run: ({ url, every, prio }) => publish(topic, url, { every, prio }),
  });
  return values ? `${visible(values.url)} is fetched every ${visible(values.every)}.` : undefined;
}

/** Asks how often to fetch a URL that has a schedule. Resolves to a sentence, or `undefined`. */
export async function reschedule(group, { url, every: was }) {
  const values = await form({
    title: 'Change a schedule',
    text: `${visible(url)} keeps its priority and attributes, and is not fetched for the change.`,
    fields: [{ ...EVERY, value: was }],
    action: 'Set',
    run: ({ every }) => publish(feedOf(group), url, { every, was }),
  });
  return values ? `${visible(url)} is fetched every ${visible(values.every)}.` : undefined;
}
