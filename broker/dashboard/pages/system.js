// The broker itself: version, limits, transports, TLS, and the rights of this session.

import { ask } from '../ask.js';
import { el, figures, head, mark, panel, replace } from '../dom.js';
import { bytes, clock, count, duration, plural, visible } from '../format.js';
import { watch } from '../live.js';
import { metrics, poll } from '../metrics.js';
import { may, me } from '../session.js';
import { table } from '../table.js';

const DAY = 86_400_000;

export function title() {
  return 'System';
}

export async function show(main, params, signal) {
  const facts = el('div', {});
  const limits = limitTable();
  const transports = transportTable();
  const refused = refusalTable();
  const tls = el('div', {});
  const { version } = await ask('/', { signal });
  const { listens, settings } = await ask('/config', { signal });
  replace(main, head('System'), facts, limits.node,
    el('div', { class: 'grid halves' },
      listenerTable(listens).node,
      transports.node,
      panel('Encryption', tls),
      panel('This session', session()),
      refused.node,
      settingList(settings)),
    el('p', { class: 'hint' }, 'Programs read this from ', el('code', {}, 'GET /metrics'), '. ',
      el('a', { href: 'openapi.json' }, 'All requests that this broker answers')));
  watch({ stats: () => {} }, signal);
  await poll(async () => {
    const now = await metrics(signal);
    replace(facts, figures(factsOf(now, version)));
    limits.update(limitsOf(now));
    transports.update(now.all('tidings_connections').map(({ labels, value }) => ({
      way: labels.way, open: value,
      opened: now.of('tidings_connections_opened_total', { way: labels.way }),
    })));
    refused.update(refusalsOf(now));
    replace(tls, encryption(now));
  }, 3_000, signal);
}

function factsOf(now, version) {
  const started = now.of('process_start_time_seconds') * 1000;
  const cpu = now.of('process_cpu_seconds_total');
  return [
    ['Version', version],
    ['Running for', duration(Date.now() - started), `since ${clock(started)}`],
    ['Memory', bytes(now.of('process_resident_memory_bytes'))],
    ['CPU time', duration(cpu * 1000)],
    ['Topics', count(now.of('tidings_topics'))],
    ['Groups', count(now.all('tidings_group_members').length)],
    ['Stored', bytes(now.sum('tidings_log_bytes'))],
  ];
}

// What is used, of how much, and what happens at the end.
function limitsOf(now) {
  const { of } = now;
  const free = of('tidings_disk_free_bytes');
  const reserve = of('tidings_disk_reserve_bytes');
  const stored = now.sum('tidings_log_bytes');
  const rows = [
    { name: 'Open files', used: of('process_open_fds'), most: of('process_max_fds'), unit: count,
      then: 'Further connections are refused.' },
    { name: 'Logs on the disk', used: free === null ? null : stored,
      most: stored + Math.max(0, free - reserve), unit: bytes,
      then: `Events are rejected when ${bytes(reserve)} are left free.` },
  ];
  return rows.filter(({ used, most }) => used !== null && most !== null);
}

function limitTable() {
  return plainTable('Limits, and how near they are', 'The broker tells no limits.', [
    { title: 'Limit', text: row => row.name },
    { title: 'Used', number: true, text: row => row.unit(row.used) },
    { title: 'Most', number: true, text: row => row.unit(row.most) },
    { title: 'Share', text: row => {
      const share = row.most > 0 ? Math.round((row.used / row.most) * 100) : 100;
      const kind = share >= 90 ? 'bad' : share >= 75 ? 'warn' : 'ok';
      return el('span', { class: 'share' },
        el('meter', { min: 0, max: 100, high: 75, value: share, 'aria-hidden': 'true' }),
        mark(kind, `${share} %`));
    } },
    { title: 'At the limit', text: row => row.then },
  ]);
}

const WAYS = { line: 'line protocol', http: 'HTTP', zmq: 'ZeroMQ', unix: 'unix socket' };

function listenerTable(listens) {
  const view = plainTable('Listens', 'Nothing listens.', [
    { title: 'Transport', text: row => WAYS[row.way] ?? visible(row.way) },
    { title: 'Address', text: row => el('code', {}, visible(row.address)) },
    { title: 'Encryption', text: row => (row.tls ? mark('ok', 'TLS') : mark('off', 'none')) },
  ]);
  view.update(listens);
  return view;
}

// The flags that do not have their defaults.
function settingList(settings) {
  if (settings === null) {
    return panel('Settings', el('p', { class: 'hint' },
      'A client that has logged in and has the permission admin sees which flags are set.'));
  }
  const view = plainTable('Settings', 'All flags have their defaults.', [
    { title: 'Flag', text: row => row.key },
    { title: 'Value', text: row => el('code', { class: 'url' }, visible(row.value)) },
    { title: 'Set by', text: row => visible(row.origin) },
  ]);
  view.update(settings);
  return view.node;
}

function transportTable() {
  return plainTable('Connections', 'Nothing is connected.', [
    { title: 'Transport', text: row => WAYS[row.way] ?? visible(row.way) },
    { title: 'Open', number: true, text: row => count(row.open) },
    { title: 'Since the start', number: true, text: row => count(row.opened) },
  ]);
}

function refusalsOf(now) {
  const total = (name, text) => ({ text, number: now.of(name) ?? 0 });
  return [
    total('tidings_connections_refused_total', 'Connections beyond the limit'),
    total('tidings_logins_failed_total', 'Logins with a wrong token'),
    total('tidings_refused_lines_total', 'Lines and requests'),
    total('tidings_audit_lost_records_total', 'Audit records that were lost'),
    ...now.all('tidings_refusals_total').filter(({ value }) => value > 0)
      .map(({ labels, value }) => ({ text: `Line protocol: ${labels.code}`, number: value })),
  ];
}

function refusalTable() {
  return plainTable('Refused since the start', 'Nothing.', [
    { title: 'What', text: row => row.text },
    { title: 'Count', number: true, text: row => count(row.number) },
  ]);
}

// A table in a fixed order, with the text of the first column as the name of a row.
const plainTable = (caption, empty, columns) =>
  table({ caption, empty, columns, key: columns[0].text });

function encryption(now) {
  const end = now.of('tidings_tls_certificate_not_after_seconds');
  const page = location.protocol === 'https:'
    ? mark('ok', 'This page came over HTTPS.') : mark('off', 'This page came over plain HTTP.');
  if (end === null) {
    return [el('p', {}, page), el('p', {}, mark('off', 'The broker itself has no certificate.'))];
  }
  const left = end * 1000 - Date.now();
  const text = left > 0
    ? `The certificate is valid until ${clock(end * 1000)}, for ${duration(left)}.`
    : `The certificate has expired: ${clock(end * 1000)}.`;
  return [el('p', {}, page), el('p', {}, mark(certificateKind(left), text))];
}

/** The kind of mark for a certificate that is valid for another `left` ms. */
const certificateKind = left => (left < 3 * DAY ? 'bad' : left < 14 * DAY ? 'warn' : 'ok');

function session() {
  const { name, known, permissions, denied = [] } = me();
  const rights = [
    ['monitor', 'see everything except events'],
    ['admin', 'change topics and groups'],
  ];
  return [
    el('p', {}, known ? ['Logged in as ', el('b', {}, visible(name ?? 'without a name')), '.']
      : 'Not logged in: this broker lets clients of this address in without a token.'),
    el('ul', { class: 'plain' }, rights.map(([right, what]) =>
      el('li', {}, mark(may(right) ? 'ok' : 'off', `${may(right) ? 'May' : 'May not'} ${what}`),
        ' (', el('code', {}, right), ')'))),
    permissions === null ? el('p', {}, 'Everything is allowed.')
      : words(plural(permissions.length, 'permission'), permissions),
    denied.length > 0 && words('Denied', denied),
  ];
}

const words = (title, list) => [
  el('p', {}, `${title}:`),
  el('ul', { class: 'words' }, list.map(each => el('li', {}, el('code', {}, visible(each))))),
];
