// What failed in a pass, by reason, what to do about it, which hosts were slow, and its seeds.

import { button, form } from './actions.js';
import { ask } from './ask.js';
import { GROUP, jobPath } from './crawl.js';
import { el, panel, replace, setText } from './dom.js';
import {
  clock, count, duration, hostLink, oneWord, plural, resultsLink, urlLink, visible,
} from './format.js';
import { PassPages, REASONS, RIGHT, asText, download } from './outcomes.js';
import { needs } from './session.js';
import { table } from './table.js';

const ROWS = 25;
// Above this, the events of a pass are read only when the reader wants that.
const READ_UNASKED = 50_000;
// The last events of a pass may come a moment after its figures: how often, and when, they are read
// again while some are missing.
const LATE_READS = 5;
const LATE_MS = 500;

/**
 * What the events of a pass say: `{times, failures, hosts, seeds, update(job)}`, a line and three
 * panels.
 */
export function outcomePanels(signal) {
  const note = el('p', { class: 'hint', role: 'status' });
  const lists = el('div', {});
  const actions = el('div', { class: 'actions' });
  const hosts = hostTable();
  const times = el('p', { class: 'hint' });
  const seedList = el('ul', { class: 'urls' });
  const seeds = panel('Seeds that have ended', seedList);
  seeds.hidden = true;
  const reasons = new Map();
  let pass = null;
  let job = null;
  let isReading = false;
  // Whether something has changed since the present read began.
  let isStale = false;
  let isWanted = false;
  let lateReads = 0;

  async function read() {
    isStale = true;
    if (isReading) {
      return;
    }
    isReading = true;
    while (isStale && !signal.aborted) {
      isStale = false;
      await readPass(pass);
    }
    isReading = false;
  }

  async function readPass(reader) {
    try {
      await reader.read(signal, events => reader === pass && events > 10_000 &&
        replace(note, `${count(events)} events read…`));
      if (reader === pass) {
        draw();
        readLater(reader);
      }
    } catch (error) {
      if (reader === pass && !signal.aborted) {
        replace(note, error.status === 404 ? 'There are no events on page-ready yet.'
          : error.message);
      }
    }
  }

  function readLater(reader) {
    const isMissing = !reader.isCut && reader.knownFrom === 1 && knownOf(reader) < job.failed;
    if (job.state === 'done' && isMissing && lateReads < LATE_READS && !signal.aborted) {
      lateReads += 1;
      setTimeout(() => reader === pass && !signal.aborted && read(), LATE_MS * lateReads);
    }
  }

  function draw() {
    const found = pass.byReason();
    const known = knownOf(pass);
    replace(note, missing(pass, job, known));
    setText(times, pass.from === null ? '' : range(pass));
    if (seedList.childElementCount !== pass.seeds.size) {
      replace(seedList, [...pass.seeds].map(url => el('li', {}, urlLink(url))));
    }
    seeds.hidden = pass.seeds.size === 0;
    for (const [reason, pages] of found) {
      if (!reasons.has(reason)) {
        reasons.set(reason, reasonList(reason));
      }
      reasons.get(reason).update(pages);
    }
    const wanted = found.map(([reason]) => reasons.get(reason).node);
    [...lists.children].filter(node => !wanted.includes(node)).forEach(node => node.remove());
    wanted.filter((node, index) => lists.children[index] !== node)
      .forEach(node => lists.append(node));
    hosts.update([...pass.hosts.values()].sort((a, b) => b.ms / b.pages - a.ms / a.pages)
      .slice(0, 20));
  }

  function update(next) {
    const isNew = job?.pass !== next.pass || job?.number !== next.number;
    const hasChanged = isNew || job.completed !== next.completed || job.failed !== next.failed ||
      job.state !== next.state;
    if (isNew || job.state !== next.state) {
      replace(actions, buttons(next, () => pass));
    }
    job = next;
    if (needs(RIGHT)) {
      replace(note, `The list of pages ${needs(RIGHT)}.`);
      return;
    }
    if (isNew) {
      pass = new PassPages(job);
      isStale = false;
      reasons.clear();
      [times, lists, seedList].forEach(node => replace(node));
      seeds.hidden = true;
      hosts.update([]);
    }
    if (hasChanged && (isWanted || job.found <= READ_UNASKED)) {
      lateReads = 0;
      read();
    } else if (isNew) {
      replace(note, el('button', {
        type: 'button', onclick: () => {
          isWanted = true;
          read();
        },
      }, `Read the outcomes of ${plural(job.found, 'URL')}`));
    }
  }

  return {
    times, failures: panel('Pages that failed', actions, note, lists), hosts: hosts.node,
    seeds, update,
  };
}

// How many failed pages have an event.
function knownOf(pass) {
  return pass.byReason().reduce((sum, [, pages]) => sum + pages.length, 0);
}

// The times of events are whole seconds.
function range({ from, to }) {
  const took = to > from ? `, ${duration(to - from)}` : '';
  return `Results from ${clock(from)} to ${clock(to)}${took}.`;
}

// What is not among the lists, or that nothing is.
function missing(pass, job, known) {
  if (pass.isCut) {
    return `The first ${count(known)} are listed; tidings job failed ${job.job} lists all.`;
  }
  if (known < job.failed && pass.knownFrom > 1) {
    return `${count(known)} of ${count(job.failed)} are known; page-ready has the events from ` +
      `number ${count(pass.knownFrom)} on.`;
  }
  if (known < job.failed) {
    return `${count(known)} of ${count(job.failed)} have an event on page-ready.`;
  }
  return known === 0 ? 'Nothing failed.' : null;
}

// The pages with one reason. They are put into the document only while the list is open.
function reasonList(reason) {
  const title = el('summary', {});
  const word = visible(reason);
  const list = table({
    caption: `Failed: ${word}`, filter: true, empty: '', key: page => page.id,
    columns: [
      { title: 'URL', text: page => urlLink(page.url), sort: page => page.url },
      { title: 'Status', text: page => page.status ?? '', sort: page => page.status, number: true },
      { title: 'Error', text: page => oneWord(page.error) },
      { title: 'Depth', text: page => page.depth ?? '', sort: page => page.depth, number: true },
    ],
  });
  let pages = [];
  let shown = ROWS;
  const draw = () => {
    if (node.open) {
      list.update(pages.slice(0, shown), {
        more: shown < pages.length ? () => {
          shown += ROWS;
          draw();
        } : null,
      });
    }
  };
  const node = el('details', { class: 'reason', ontoggle: draw }, title, list.node);
  const update = next => {
    pages = next;
    replace(title, el('b', {}, count(pages.length)), ' ', el('code', {}, word),
      REASONS[reason] ? `: ${REASONS[reason]}` : null);
    draw();
  };
  return { node, update };
}

function hostTable() {
  return table({
    caption: 'Slowest hosts', empty: 'No times are known.', key: row => row.host,
    columns: [
      { title: 'Host', text: row => hostLink(row.host, GROUP), sort: row => row.host },
      { title: 'Requests', text: row => count(row.pages), sort: row => row.pages, number: true },
      { title: 'Mean', text: row => duration(row.ms / row.pages),
        sort: row => row.ms / row.pages, number: true },
      { title: 'Longest', text: row => duration(row.most), sort: row => row.most, number: true },
    ],
  });
}

function buttons(job, pass) {
  const own = `job:${job.job}`;
  const retry = button({
    label: 'Retry what failed…', right: needs(own) ? own : RIGHT,
    run: async () => retryFailed(job, pass()),
  });
  return [
    job.state === 'done' && job.failed > 0 ? retry : null,
    button({ label: 'Download…', right: RIGHT, run: () => save(job) }),
    resultsLink({ job: job.job }, 'All results'),
  ];
}

// The failed pages become the seeds of the next pass.
async function retryFailed(job, pass) {
  await pass.read();
  const found = pass.byReason();
  const all = knownOf(pass);
  if (all === 0) {
    return 'No failed page is known.';
  }
  const values = await form({
    title: `Retry failed pages of ${job.job}`, action: 'Retry',
    text: 'The next pass fetches these pages alone: links are not followed, and the limits of ' +
      'the job do not count. Their dead letters are dropped.',
    fields: [{
      name: 'reason', label: 'Which', type: 'select', value: '', options: [
        ['', `all ${plural(all, 'page')}`],
        ...found.map(([reason, pages]) => [reason, `${visible(reason)}: ${count(pages.length)}`]),
      ],
    }],
  });
  if (!values) {
    return null;
  }
  const query = values.reason ? { reason: values.reason } : {};
  const { pages } = await ask(jobPath(job.job, '/retry'), { method: 'POST', query });
  return `${plural(pages, 'page')} of ${job.job} will be fetched again.`;
}

async function save(job) {
  const values = await form({
    title: `Download pages of ${job.job}`, action: 'Download',
    fields: [
      { name: 'pages', label: 'Pages', type: 'select', value: 'failed',
        options: [['failed', 'those that failed'], ['all', 'all that ended']] },
      { name: 'format', label: 'Format', type: 'select', value: 'jsonl',
        options: [['jsonl', 'JSON lines'], ['csv', 'CSV, for a spreadsheet']] },
    ],
  });
  if (!values) {
    return null;
  }
  const pass = new PassPages(job, values.pages === 'failed');
  await pass.read();
  const pages = [...pass.pages.values()];
  const type = values.format === 'csv' ? 'text/csv' : 'application/jsonl';
  download(`${job.job}-pass-${job.pass}.${values.format}`, type, asText(pages, values.format));
  const cut = pass.isCut ? ` There are more: tidings job pages ${job.job} lists all.` : '';
  return `${plural(pages.length, 'page')} downloaded.${cut}`;
}
