// Figures as text, and what a peer wrote as text that shows what it is.

import { el } from './dom.js';

/** What stands for an unknown figure. */
export const NONE = '–';

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const three = new Intl.NumberFormat('en', { maximumSignificantDigits: 3 });
const two = new Intl.NumberFormat('en', { maximumSignificantDigits: 2 });
const time = new Intl.DateTimeFormat('en-GB', { timeStyle: 'medium' });
const dateTime = new Intl.DateTimeFormat('en-GB', { dateStyle: 'medium', timeStyle: 'medium' });

// Two digits below 10, otherwise three.
const few = number => (Math.abs(number) < 9.95 ? two : three).format(number);
const known = number => typeof number === 'number' && Number.isFinite(number);

/** A count with commas. */
export function count(number) {
  return known(number) ? whole.format(number) : NONE;
}

/** `1 page`, `2 pages`. */
export function plural(number, one, many = `${one}s`) {
  return `${count(number)} ${number === 1 ? one : many}`;
}

/** Bytes with a decimal unit, as the command line prints them. */
export function bytes(number) {
  if (!known(number)) {
    return NONE;
  }
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let value = number;
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${unit === 0 ? whole.format(value) : few(value)} ${units[unit]}`;
}

// How many of the smaller unit the larger has.
const RATIO = { m: 60, h: 60, d: 24 };

/** A duration of `ms` milliseconds: `45 ms`, `2.3 s`, `3m 05s`, `2h 03m`, `4d 01h`. */
export function duration(ms) {
  if (!known(ms)) {
    return NONE;
  }
  if (ms < 999.5) {
    return `${few(ms)} ms`;
  }
  const seconds = Math.round(ms / 1000);
  if (seconds < 60) {
    return `${ms < 9_950 ? two.format(ms / 1000) : seconds} s`;
  }
  const pair = (large, small, size) =>
    `${whole.format(Math.floor(seconds / size))}${large} ` +
    `${String(Math.floor((seconds % size) / (size / RATIO[large]))).padStart(2, '0')}${small}`;
  return seconds < 3_600 ? pair('m', 's', 60)
    : seconds < 86_400 ? pair('h', 'm', 3_600) : pair('d', 'h', 86_400);
}

/** A rate, as `118/s`. */
export function rate(perSecond) {
  if (!known(perSecond)) {
    return NONE;
  }
  if (perSecond > 0 && perSecond < 0.01) {
    return '< 0.01/s';
  }
  return `${perSecond < 999.5 ? few(perSecond) : whole.format(perSecond)}/s`;
}

/** The time of day; with the date if it is not today. */
export function clock(unixMs) {
  const date = new Date(unixMs);
  const isToday = date.toDateString() === new Date().toDateString();
  return (isToday ? time : dateTime).format(date);
}

/** How long ago something happened. */
export function ago(ms) {
  if (!known(ms)) {
    return NONE;
  }
  const whole = ms < 60_000 ? Math.floor(ms / 1000) * 1000 : ms;
  return ms < 1000 ? 'just now' : `${duration(whole)} ago`;
}

// Characters without a shape of their own: control, format, bidi marks, unassigned, private, lone
// surrogates, ignorable ones, and every space but the common one.
const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{DI}]|(?! )\p{Zs}/gu;

/** Text of a peer, with invisible characters as escapes such as `\u{202e}`. */
export function visible(text) {
  return String(text ?? '').replace(HIDDEN, char => `\\u{${char.codePointAt(0).toString(16)}}`);
}

/** A text of a peer that had to be one word, so that `_` may stand for white space. */
export function oneWord(text) {
  return visible(text).replaceAll('_', ' ');
}

// A link to a page of this dashboard, with the last part of its path as text.
const pageLink = (...path) =>
  el('a', { href: `#/${path.map(encodeURIComponent).join('/')}` }, visible(path.at(-1)));

/** A link to the page of a group. */
export const groupLink = group => pageLink('groups', group);

/** The host of a URL without its port, as in the key of a group; `null` if it is no URL. */
export const hostOf = url => (URL.canParse(url) ? new URL(url).hostname : null);

/** A link to the page of a host of a group. */
export const hostLink = (key, group = 'crawlers') => pageLink('groups', group, 'hosts', key);

/** A link to the page of a job, if there is one. */
export const jobLink = job => (job ? pageLink('jobs', job) : NONE);

/** A link to the results that match filters. */
export const resultsLink = (filters, text) =>
  el('a', { href: `#/results?${new URLSearchParams(filters)}` }, text);

// Characters of a URL that are shown; the link has all of them.
const URL_SHOWN = 300;

/** A URL, as a link if it is http or https. */
export function urlLink(url) {
  const text = visible(url);
  const shown = text.length <= URL_SHOWN ? text
    : `${text.slice(0, URL_SHOWN - 41)}…${text.slice(-40)}`;
  const parsed = URL.canParse(url) ? new URL(url) : null;
  if (!/^https?:\/\//i.test(url) || !/^https?:$/.test(parsed?.protocol ?? '')) {
    return el('span', { class: 'url' }, shown);
  }
  return el('a', {
    class: 'url', href: parsed.href, target: '_blank', rel: 'noreferrer noopener',
  }, shown);
}
