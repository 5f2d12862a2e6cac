// What failed in a pass becomes the next one.

import { form } from './actions.js';
import { ask, partly } from './ask.js';
import { GROUP, jobPath } from './crawl.js';
import { count, plural, visible } from './format.js';
import { needs } from './session.js';

// URLs of one request.
const SEEDS = 5_000;

/** The failed pages become the seeds of the next pass, as `tidings job retry` does it. */
export async function retryFailed(job, pass) {
  await pass.read();
  const found = pass.byReason();
  const all = found.reduce((sum, [, pages]) => sum + pages.length, 0);
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
  const chosen = found.filter(([reason]) => !values.reason || reason === values.reason)
    .flatMap(([, pages]) => pages);
  await queue(job, chosen);
  return `${plural(chosen.length, 'page')} of ${job.job} will be fetched again.`;
}

async function queue({ job, render, callback }, pages) {
  const opened = { job, render, callback, 'max-depth': 0, hold: true };
  await ask('/jobs', { method: 'POST', body: opened });
  let queued = 0;
  let dropped = 0;
  const dead = needs('admin') ? [] : pages.filter(({ gaveUp }) => gaveUp);
  try {
    for (; queued < pages.length; queued = Math.min(queued + SEEDS, pages.length)) {
      const urls = pages.slice(queued, queued + SEEDS).map(({ url }) => url);
      await ask(jobPath(job, '/urls'), { method: 'POST', body: { urls } });
    }
    for (; dropped < dead.length; dropped += 1) {
      const { id } = dead[dropped];
      const query = { entry: id.slice(id.lastIndexOf('.') + 1), job };
      await ask(`/groups/${GROUP}/dead/drop`, { method: 'POST', query });
    }
    await ask(jobPath(job, '/close'), { method: 'POST' });
  } catch (error) {
    const letters = dead.length > 0 &&
      `${count(dropped)} of ${plural(dead.length, 'dead letter')} dropped`;
    throw partly(error, [
      `${count(queued)} of ${plural(pages.length, 'page')} queued`, letters,
      'the job is still open',
    ]);
  }
}
