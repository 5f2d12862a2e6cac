// The forms of jobs: open one, and change one that runs, with a preview.

import { confirm, filled, form } from './actions.js';
import { ask } from './ask.js';
import { jobPath } from './crawl.js';
import { el } from './dom.js';
import { count, plural, visible } from './format.js';

const PATTERNS = 'Patterns of robots.txt, one a line: * matches any text, $ ends the URL.';
/** The words of `scope=`, and what each follows. */
export const SCOPES = [
  ['host', 'the hosts of the seeds'], ['domain', 'the domains of the seeds'],
  ['prefix', 'below the paths of the seeds'], ['any', 'all links'],
];

// A number in a field, or nothing.
const limit = (name, label) => ({ name, label, type: 'number' });
/** The limits of a job: a field each, which is empty without a limit. */
export const LIMITS = [
  limit('max-depth', 'Links between a seed and a page, at most'),
  limit('max-pages', 'Pages at most'),
  limit('max-per-host', 'Pages of one host at most'),
  { name: 'max-time', label: 'Time at most', hint: 'Such as 30m, 2h or 3d.' },
];

const limits = job => LIMITS.map(field => ({ ...field, value: job?.[field.name] }));
const lines = text => text.split(/\s+/u).filter(line => line !== '');
const patterns = text => (lines(text).length > 0 ? lines(text) : null);

/** Asks for a job and opens it, or the next pass of one. Resolves to its name or `null`. */
export async function openJob(job = null) {
  const name = job?.job;
  const values = await form({
    title: name ? `Open the next pass of ${name}` : 'Open a job', action: 'Open',
    text: name && 'Scope and limits are those of the last pass.',
    fields: [
      name ? [] : { name: 'job', label: 'Name', required: true },
      { name: 'urls', label: 'Seeds', type: 'textarea', hint: 'URLs, one a line.' },
      { name: 'scope', label: 'Follow links to', type: 'select',
        value: job?.['scope-rule'] ?? 'host', options: SCOPES },
      { name: 'include', label: 'Only links that match', type: 'textarea', hint: PATTERNS,
        value: job?.include?.join('\n') },
      { name: 'exclude', label: 'No links that match', type: 'textarea', hint: PATTERNS,
        value: job?.exclude?.join('\n') },
      limits(job),
      { name: 'close', label: 'Close it: it gets no further seeds', type: 'checkbox', value: true },
    ].flat(),
    run: async ({ job: typed, urls, include, exclude, ...rest }) => {
      const body = filled({
        ...rest, job: name ?? typed, urls: lines(urls), include: patterns(include),
        exclude: patterns(exclude), render: job?.render, callback: job?.callback,
      });
      await ask('/jobs', { method: 'POST', body });
    },
  });
  return values && (name ?? values.job);
}

/** Asks for changes of a job, says what they would drop, and makes them. */
export async function changeJob(job) {
  let body = {};
  let dropped = [];
  const values = await form({
    title: `Change ${job.job}`, action: 'Preview',
    text: 'The changes count for this pass.',
    fields: [
      { name: 'include', label: 'Only links that match', type: 'textarea', hint: PATTERNS,
        value: job.include?.join('\n') },
      { name: 'exclude', label: 'No links that match', type: 'textarea', hint: PATTERNS,
        value: job.exclude?.join('\n') },
      limits(job),
    ].flat(),
    run: async given => {
      body = changes(job, given);
      if (Object.keys(body).length > 0) {
        dropped = await preview(job.job, body);
      }
    },
  });
  if (!values || Object.keys(body).length === 0) {
    return values && 'Nothing was changed.';
  }
  const isSure = await confirm({
    title: `Change ${job.job}?`, action: 'Change the job', text: dropped,
  });
  if (!isSure) {
    return null;
  }
  await ask(jobPath(job.job), { method: 'PATCH', body });
  return `${job.job} is changed.`;
}

function changes(job, { include, exclude, ...given }) {
  const body = {};
  for (const [name, value] of Object.entries(given)) {
    const wanted = value === '' ? null : value;
    if (wanted !== (job[name] ?? null)) {
      body[name] = wanted;
    }
  }
  for (const [name, text] of Object.entries({ include, exclude })) {
    if (lines(text).join('\n') !== (job[name] ?? []).join('\n')) {
      body[name] = patterns(text);
    }
  }
  return body;
}

// What a change would drop: the whole queue is compared, some thousand URLs a request.
async function preview(name, change) {
  const found = { drop: 0, of: 0, examples: [] };
  let after;
  do {
    const body = { ...change, dry: true, after };
    const part = await ask(jobPath(name), { method: 'PATCH', body });
    found.drop += part['would-drop'];
    found.of += part.of;
    found.examples.push(...part.examples);
    after = part.next;
  } while (after !== undefined);
  const sentence = found.drop === 0
    ? `None of ${plural(found.of, 'waiting URL')} would be dropped.`
    : `${count(found.drop)} of ${plural(found.of, 'waiting URL')} would be dropped without a ` +
      'request:';
  const shown = found.examples.slice(0, 20);
  return [
    sentence,
    el('ul', { class: 'urls' }, shown.map(url => el('li', { class: 'url' }, visible(url)))),
    found.drop > shown.length ? `and ${count(found.drop - shown.length)} more.` : [],
    'Budgets and times that are reached by the change are not part of this.',
  ].flat();
}
