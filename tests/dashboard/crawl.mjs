// A crawl as the pages show it, before, while it runs and after its end, without being loaded again.
// usage: crawl.mjs ADDRESS BROKER

import { strictEqual as same } from 'node:assert/strict';
import { main, openTab, tell, until, untilEqual } from './browser.mjs';
import { show } from './pages.mjs';

const [address, broker] = process.argv.slice(2);

const texts = locator => locator.evaluateAll(nodes => nodes.map(each => each.textContent));
const number = text => Number(text.replaceAll(',', ''));

// What the page of the job says with figures.
async function shown(page) {
  const terms = await texts(page.locator('dl.figures dt'));
  const values = await texts(page.locator('dl.figures dd'));
  const bar = page.getByRole('progressbar', { name: 'ended' });
  const plot = page.getByRole('slider', { name: 'Waiting and crawled' });
  const outcomes = page.getByRole('table', { name: 'Outcomes' }).getByRole('row');
  return {
    figures: terms.map((term, index) => [term, values[index]])
      .filter(([term]) => /^(Waiting|Under way|Crawled|Failed)$/.test(term))
      .map(([term, value]) => [term, number(value)]),
    bar: await bar.evaluate(({ value, max, parentNode }) =>
      [value, max, parentNode.lastChild.textContent]),
    plot: (await plot.getAttribute('aria-valuetext')).replace(/^[\d:]+ /, ''),
    outcomes: await outcomes.evaluateAll(rows => rows.map(row =>
      [...row.cells].slice(0, 2).map(cell => cell.textContent))),
  };
}

// The same from the answer of `tidings job show --json`.
function figuresOf(job) {
  const waiting = job.pending + job.queued;
  const open = waiting + job.processing;
  const ended = job.found - open;
  return {
    figures: [['Waiting', waiting], ['Under way', job.processing], ['Crawled', job.completed],
      ['Failed', job.failed]],
    bar: [ended, job.found, `${ended} of ${job.found}`],
    plot: `waiting ${open}, crawled ${job.completed}, failed ${job.failed}`,
    outcomes: [['fetched', `${job.completed}`], ['failed', `${job.failed}`],
      ['not allowed by robots.txt', `${job.robots}`]],
  };
}

await main(async browser => {
  const tab = await openTab(browser, address, { expected: [/status of 404/] });
  const { page } = tab;
  await page.evaluate(() => { globalThis.mark = 1; });
  const steps = page.getByText('Nothing has happened here yet');
  await show(tab, ['#/', 'Nothing has happened here yet']);
  same((await texts(page.locator('main pre'))).join('\n'), [
    `tidings pub new-url https://example.org/ --broker ${broker}`,
    `echo https://example.org/ | nc -N ${broker.replace(':', ' ')}`,
    `curl --data https://example.org/ ${address}topics/new-url`,
    `tidings crawl --broker ${broker} &\ntidings crawl --broker ${broker} https://example.org/`,
  ].join('\n'));
  await show(tab, ['#/jobs/census', 'There is no such job now.']);
  same(await page.locator('main').getByRole('heading', { level: 2 }).count(), 0);
  let job = await tell('crawl all hosts but those that are paused');
  await untilEqual('the figures', () => shown(page), figuresOf(job));
  const rows = name => page.getByRole('table', { name }).locator('tbody tr');
  const { keys } = await (await page.request.get(`${address}groups/crawlers/keys`)).json();
  // No time is given for what a rule without an end holds.
  const holding = keys.map(({ key, waiting }) =>
    [key, `${waiting}`, 'a rule of an operator holds it', '–', '–']);
  await untilEqual('the hosts that wait', () => rows('Hosts that hold it up').evaluateAll(all =>
    all.map(row => [...row.cells].slice(0, 5).map(cell => cell.textContent))), holding);
  await page.getByText(`No end is in sight: a rule holds ${keys[0].key} and other hosts, and does ` +
    'not end by itself.').waitFor();

  await show(tab, ['#/', 'Hosts resting']);
  await untilEqual('what the crawlers do', () => page.locator('dl.figures div').evaluateAll(all =>
    all.slice(0, 3).map(({ children }) => [...children].map(each => each.textContent))),
    [['Pages', '0/s'], ['Failed', '0/s'], ['Hosts resting', `${keys.length}`]]);
  await show(tab, ['#/jobs/census', 'No end is in sight']);

  // The newest failed page comes late: two answers do not have it.
  const answers = new Map();
  await page.route('**/topics/page-ready?*', async route => {
    const response = await route.fetch();
    const json = await response.json();
    const at = json.events.findLastIndex(({ payload }) => payload.includes(' outcome=failed '));
    const seq = json.events[at]?.seq;
    if (at >= 0 && (answers.get(seq) ?? 0) < 2) {
      answers.set(seq, (answers.get(seq) ?? 0) + 1);
      json.next = seq;
      json.events.length = at;
    }
    await route.fulfill({ response, json });
  });
  job = await tell('crawl the rest');
  await page.getByText('This pass is done.').waitFor();
  await untilEqual('the figures', () => shown(page), figuresOf(job));
  await page.getByText('They count requests since the start of the broker.').waitFor();
  await page.getByText(/^Results from [\d:]{8} to [\d:]{8}/).waitFor();
  for (const figure of ['Read', 'Response time']) {
    same(await page.locator('dl.figures div', { hasText: figure }).locator('dd.hint').textContent(),
      'since the start');
  }
  const clock = time => new Date(time).toLocaleTimeString('en-GB');
  await page.locator('dl.figures div', { hasText: 'Took' })
    .getByText(`from ${clock(job.opened)} to ${clock(job.ended)}`).waitFor();
  const reason = page.locator('summary');
  await reason.click();
  await page.getByRole('button', { name: 'Show more' }).click();
  const failed = rows('Failed: status').getByRole('link');
  await until('all that failed', async () => await failed.count() === job.failed);
  await page.unroute('**/topics/page-ready?*');
  const said = {
    holding: holding.map(([host]) => host).sort(),
    reason: await reason.textContent(), failed: await texts(failed),
    hosts: await texts(rows('Slowest hosts').locator('td:nth-child(2)')),
    seeds: await texts(page.locator('section', { hasText: 'Seeds that have ended' })
      .getByRole('link')),
  };

  // The lists of jobs agree.
  const cells = name => page.getByRole('row', { name: /^census/ }).getByRole('cell', { name });
  await show(tab, ['#/jobs', 'census']);
  await cells(`${job.found} of ${job.found}`).waitFor();
  await cells(clock(job.opened)).waitFor();
  await show(tab, ['#/', 'Newest jobs']);
  await steps.waitFor({ state: 'hidden' });
  await cells(`${job.completed}`).waitFor();
  await cells(`${job.failed}`).waitFor();
  same(await page.evaluate(() => globalThis.mark), 1, 'the page was loaded again');

  await show(tab, ['#/jobs/census', 'Retry what failed…']);
  await page.locator('main').getByRole('button', { name: 'Retry what failed…' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Retry', exact: true }).click();
  said.retry = await until('a sentence', () => page.locator('#said-text').textContent());
  job = await tell('wait for the second pass');
  await untilEqual('the figures', async () => (await shown(page)).figures, figuresOf(job).figures);
  return said;
});
