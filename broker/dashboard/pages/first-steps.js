// What to do first with a broker in which nothing has happened yet.

import { login } from '../ask.js';
import { el, panel } from '../dom.js';
import { needs } from '../session.js';

/** The panel with the lines that publish a first event, and that crawl. */
export function firstSteps() {
  const host = location.hostname || '127.0.0.1';
  const line = `${host}:12345`;
  const header = login.token ? "--header 'Authorization: Bearer TOKEN' " : '';
  const address = new URL('topics/new-url', document.baseURI);
  address.hash = '';
  const missing = needs('pub:new-url');
  return panel('Nothing has happened here yet',
    el('p', {}, 'Publish a first event. The topic ', el('code', {}, 'new-url'),
      ' exists already; any other name exists from its first event on.'),
    el('h3', {}, 'With netcat, to the line port of the broker'),
    el('pre', {}, `echo https://example.org/ | nc -N ${line.replace(':', ' ')}`),
    el('h3', {}, 'With curl'),
    el('pre', {}, `curl ${header}--data https://example.org/ ${address.href}`),
    el('h3', {}, 'Crawl: start a crawler that works for this broker, then give it a site'),
    el('pre', {}, `tidings crawl --broker ${line} &\n` +
      `tidings crawl --broker ${line} https://example.org/`),
    missing && el('p', { class: 'hint' }, `To publish, this session ${missing}.`));
}
