// Whether all is well, from the figures of the broker.

import { bytes, count, duration, plural, visible } from './format.js';
import { STOPPED, stoppedWhy } from './words.js';

const DAY = 86_400_000;
const GIGABYTE = 1e9;

/**
 * What is not well, the worst first: `{kind, text, href}`, `kind` as for marks. `ready` is the
 * answer of `GET /ready` or `null`.
 */
export function problems(figures, ready) {
  const { of } = figures;
  const topic = (name, why) => bad(`Topic ${visible(name)} takes nothing: ${why}.`,
    `#/topics/${encodeURIComponent(name)}`);
  const counted = (metric, text, href) => (of(metric) ? [bad(text(of(metric)), href)] : []);
  return [
    ...(ready?.stops ? [bad('The broker is stopping.')] : []),
    ...(ready?.['sync-failed'] ?? []).map(name => topic(name, 'a write to the disk failed')),
    ...(ready?.full ?? []).map(name => topic(name, 'the disk is full')),
    ...counted('tidings_damaged_groups',
      number => (number === 1 ? '1 group has a damaged log and rejects work.'
        : `${count(number)} groups have damaged logs and reject work.`), '#/groups'),
    ...groups(figures).flatMap(ofGroup),
    ...disk(of('tidings_disk_free_bytes'), of('tidings_disk_reserve_bytes')),
    ...certificate(of('tidings_tls_certificate_not_after_seconds')),
    ...counted('tidings_crawler_sink_blocked',
      () => 'The crawler of this process cannot store pages.'),
    ...counted('tidings_audit_lost_records_total',
      number => `${plural(number, 'audit record')} lost: the disk was slow or full.`, '#/system'),
  ].sort((a, b) => (b.kind === 'bad') - (a.kind === 'bad'));
}

/** The groups that have series of their own, as objects, those with most to do first. */
export function groups({ all, of }) {
  return all('tidings_group_waiting_entries').filter(each => each.labels.group).map(each => {
    const labels = { group: each.labels.group };
    const gauge = (name, more) => of(`tidings_group_${name}`, { ...labels, ...more }) ?? 0;
    return {
      name: labels.group, why: stoppedWhy({ of }, labels.group), waiting: each.value,
      processing: gauge('processing_entries'), members: gauge('members'),
      dead: gauge('dead_entries'), starved: gauge('starved_seconds'),
      done: gauge('answers_total', { outcome: 'completed' }),
      failed: gauge('answers_total', { outcome: 'failed' }),
    };
  }).sort((a, b) => b.waiting + b.processing - a.waiting - a.processing
    || a.name.localeCompare(b.name));
}

function ofGroup({ name, why, waiting, members, dead, starved }) {
  const href = `#/groups/${encodeURIComponent(name)}`;
  const group = visible(name);
  const found = [];
  if (why && why !== 'paused') {
    found.push(bad(`Group ${group} stands still: ${STOPPED[why]}.`, href));
  } else if (why && waiting > 0) {
    found.push(warn(`Group ${group} is paused with ${entries(waiting)} waiting.`, href));
  } else if (waiting > 0 && members === 0) {
    found.push(bad(`Group ${group} has ${entries(waiting)} waiting, and no worker is connected.`,
      href));
  } else if (starved > 60) {
    found.push(warn(`All workers of group ${group} have been busy for ` +
      `${duration(starved * 1000)}: one more would help.`, href));
  }
  if (dead > 0) {
    found.push(warn(`${plural(dead, 'dead letter')} in group ${group}.`, '#/dead'));
  }
  return found;
}

const entries = number => plural(number, 'entry', 'entries');

function disk(free, reserve) {
  if (free === null || free - reserve > GIGABYTE) {
    return [];
  }
  const text = `Only ${bytes(free)} are free on the disk; ` +
    `below ${bytes(reserve)}, events are rejected.`;
  return [{ kind: free < 4 * reserve ? 'bad' : 'warn', text, href: '#/system' }];
}

/** The kind of mark for a certificate that is valid for another `left` ms. */
export const certificateKind = left => (left < 3 * DAY ? 'bad' : left < 14 * DAY ? 'warn' : 'ok');

function certificate(end) {
  const left = end * 1000 - Date.now();
  const kind = certificateKind(left);
  if (end === null || kind === 'ok') {
    return [];
  }
  const text = left > 0 ? `The certificate expires in ${duration(left)}.`
    : 'The certificate has expired.';
  return [{ kind, text, href: '#/system' }];
}

const bad = (text, href) => ({ kind: 'bad', text, href });
const warn = (text, href) => ({ kind: 'warn', text, href });
