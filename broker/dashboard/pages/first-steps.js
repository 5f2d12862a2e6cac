// What to do first with a broker on which nothing was ever published.

import { login } from '../ask.js';
import { el, panel } from '../dom.js';
import { needs } from '../session.js';

/**
 * The panel with the lines that publish a first event, and that crawl. `port` and `tls` are those
 * of the answer of `GET /`.
 */
export function firstSteps({ port, tls }) {
  const host = location.hostname;
  const header = login.token ? "--header 'Authorization: Bearer TOKEN' " : '';
  const flags = [
    `--broker ${host}:${port}`, tls && '--ca ca.pem', login.token && '--token-file operator.token',
  ].filter(Boolean).join(' ');
  const address = new URL('topics/new-url', document.baseURI);
  address.search = '';
  address.hash = '';
  const missing = needs('pub:new-url');
  const line = (title, text) => [el('h3', {}, title), el('pre', {}, text)];
  return panel('Nothing has happened here yet',
    el('p', {}, 'Publish a first event. The topic ', el('code', {}, 'new-url'),
      ' exists already; any other name exists from its first event on.'),
    line('With this program', `tidings pub new-url https://example.org/ ${flags}`),
    !tls && !login.token &&
      line('With netcat', `echo https://example.org/ | nc -N ${host.replace(/[[\]]/g, '')} ${port}`),
    line('With curl', `curl ${header}--data https://example.org/ ${address.href}`),
    line('Crawl: start a crawler that works for this broker, then give it a site',
      `tidings crawl ${flags} &\ntidings crawl ${flags} https://example.org/`),
    missing && el('p', { class: 'hint' }, `To publish, this session ${missing}.`));
}
