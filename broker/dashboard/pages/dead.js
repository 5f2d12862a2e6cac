// Dead letters of a group: search them, and retry or drop those chosen, those that match, or all.

import { button, confirm, refreshed } from '../actions.js';
import { ask, partly, walk } from '../ask.js';
import { groupPage } from '../choice.js';
import { el, replace } from '../dom.js';
import { NONE, count, hostLink, jobLink, oneWord, plural, urlLink, visible } from '../format.js';
import { list } from '../list.js';
import { watch } from '../live.js';
import { metrics } from '../metrics.js';
import { searchForm } from '../search.js';
import { table } from '../table.js';
import { GAVE_UP } from '../words.js';

const DONE = { retry: 'retried', drop: 'dropped' };

// Requests of one action at once.
const AT_ONCE = 4;

export function title() {
  return 'Dead letters';
}

export function show(main, params, signal) {
  const label = metrics(signal).then(({ of }) => group => {
    const kept = of('tidings_group_dead_entries', { group });
    return kept === null ? group : `${group} (${count(kept)})`;
  });
  return groupPage(main, 'Dead letters', { label, show: showGroup }, signal);
}

async function showGroup(group, { place, facts }, signal) {
  const path = `/groups/${encodeURIComponent(group)}/dead`;
  const chosen = el('span', { class: 'hint', role: 'status' }, '0 chosen');
  const reason = el('select', { id: 'reason', onchange: () => draw() });
  let query = {};
  let read = [];
  let more = null;
  const has = row => !reason.value || reasonOf(row) === reason.value;

  const view = table({
    caption: `Dead letters of ${group}`, columns: columns(group),
    key: row => String(row.entry), select: true,
    empty: 'No dead letter.',
    onSelect: keys => { chosen.textContent = `${count(keys.length)} chosen`; },
  });
  const draw = () => {
    reasonsOf(reason, read);
    view.update(read.filter(has), { more });
    chosen.textContent = `${count(view.selected().length)} chosen`;
  };
  const letters = list({
    path, field: 'dead', key: row => row.entry,
    onRead: ({ matched }) => {
      facts.textContent = matched === undefined ? ''
        : `${plural(matched, 'dead letter')} in ${group}`;
    },
  }, { update: (rows, options) => { read = rows; ({ more } = options); draw(); } }, signal);

  const search = next => {
    query = next;
    reason.value = '';
    return letters.reload(next);
  };
  const action = (label, verb, select) => button({
    label, right: 'admin', danger: verb === 'drop', run: async () => {
      const wanted = await select();
      const text = verb === 'retry'
        ? `${wanted.text} will be queued again, with no attempt counted.`
        : `${wanted.text} will be forgotten. This cannot be undone.`;
      if (wanted.number === 0) {
        return 'There is nothing to do: no dead letter is chosen.';
      }
      if (!await confirm({ title: `${label.replace('…', '')}?`, text, action: `Yes, ${verb}` })) {
        return undefined;
      }
      return refreshed(await send(path, verb, wanted), letters.reload);
    },
  });
  const ticked = async () => {
    const entries = view.selected();
    return { entries, number: entries.length, text: plural(entries.length, 'dead letter') };
  };
  const matching = () => (reason.value ? withReason() : counted(path, query, group, signal));
  const withReason = async () => {
    const wanted = reason.value;
    const entries = [];
    for await (const { dead } of walk(path, { signal, query: { ...query, limit: 1000 } })) {
      const fits = dead.filter(row => reasonOf(row) === wanted);
      entries.push(...fits.map(row => row.entry));
    }
    return {
      entries, number: entries.length,
      text: selection(plural(entries.length, 'dead letter'), group, query, wanted),
    };
  };

  replace(place, el('h2', { class: 'unseen' }, `Dead letters of ${group}`), searchForm(search),
    el('div', { class: 'search' }, el('label', { for: 'reason' }, 'Last reason'), reason, chosen),
    el('div', { class: 'actions' },
      action('Retry those chosen…', 'retry', ticked),
      action('Drop those chosen…', 'drop', ticked),
      action('Retry all that match…', 'retry', matching),
      action('Drop all that match…', 'drop', matching)),
    view.node,
    el('p', { class: 'hint' }, 'The reasons are those of the dead letters that are listed. ' +
      'Without a search and a reason, all match.'));
  await letters.reload();
  let kept = null;
  watch({
    [`group:${group}`]: object => {
      // A busy group changes all the time.
      if (object && kept !== null && kept !== object['dead-kept']) {
        // The page says by itself when the broker is away.
        letters.refresh().catch(() => {});
      }
      kept = object?.['dead-kept'] ?? kept;
    },
  }, signal);
}

const reasonOf = row => row.last ?? row.reason ?? 'none';

// The options of the choice of a reason, with how many listed letters have each.
function reasonsOf(select, rows) {
  const numbers = new Map();
  rows.forEach(row => numbers.set(reasonOf(row), (numbers.get(reasonOf(row)) ?? 0) + 1));
  if (select.value && !numbers.has(select.value)) {
    numbers.set(select.value, 0);
  }
  const options = [['', `any (${count(rows.length)})`], ...[...numbers]
    .sort((a, b) => b[1] - a[1])
    .map(([word, number]) => [word, `${oneWord(word)} (${count(number)})`])];
  const shown = [...select.options].map(option => option.textContent).join();
  if (shown !== options.map(([, label]) => label).join()) {
    const { value } = select;
    replace(select, options.map(([word, label]) =>
      el('option', { value: word, selected: word === value }, label)));
  }
}

function columns(group) {
  return [
    { title: 'URL', text: row => urlLink(row.url), sort: row => row.url },
    { title: 'Host', text: row => hostLink(row.key, group), sort: row => row.key },
    { title: 'Last reason', text: row => oneWord(row.last ?? NONE), sort: row => row.last },
    { title: 'Given up', text: row => GAVE_UP[row.reason] ?? visible(row.reason ?? NONE),
      sort: row => row.reason },
    { title: 'Job', text: row => jobLink(row.job), sort: row => row.job },
    { title: 'Failures', number: true, text: row => count(row.attempts),
      sort: row => row.attempts },
    { title: 'Losses', number: true, text: row => count(row.losses), sort: row => row.losses },
  ];
}

// How many dead letters a search selects. The broker does not count very many of them.
async function counted(path, query, group, signal) {
  const { matched } = await ask(path, { signal, query: { ...query, limit: 0 } });
  const some = matched === undefined ? 'More dead letters than the broker counts at once'
    : plural(matched, 'dead letter');
  return { query, number: matched ?? null, text: selection(some, group, query) };
}

// What is selected, for a question: `5 dead letters of crawlers, all with the host example.org,`.
function selection(some, group, { key, match }, reason) {
  const parts = [
    key && `the host ${visible(key)}`, match && `a URL that matches ${visible(match)}`,
    reason && `the last reason ${oneWord(reason)}`,
  ].filter(Boolean);
  const rest = parts.length > 0 ? ` with ${parts.join(' and ')}` : '';
  return `${some} of ${visible(group)} (all${rest})`;
}

async function send(path, verb, { entries, query }) {
  const queries = entries?.map(entry => ({ entry })) ?? [query];
  const wanted = queries.length;
  let done = 0;
  let blocked = 0;
  let failure = null;
  const work = async () => {
    for (let next = queries.shift(); next !== undefined; next = queries.shift()) {
      const answer = await ask(`${path}/${verb}`, { method: 'POST', query: next });
      done += answer[DONE[verb]];
      blocked += answer.blocked ?? 0;
    }
  };
  // After a failure nothing more is sent, and what is under way counts.
  await Promise.all(Array.from({ length: AT_ONCE }, () => work().catch(error => {
    failure ??= error;
    queries.length = 0;
  })));
  if (failure) {
    throw entries ? partly(failure, [`${count(done)} of ${count(wanted)} ${DONE[verb]}`]) : failure;
  }
  const rest = blocked ? ` ${count(blocked)} stay: a rule blocks their host.` : '';
  return `${plural(done, 'dead letter')} ${DONE[verb]}.${rest}`;
}
