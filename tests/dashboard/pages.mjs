// The pages of the dashboard, and a text that each shows once it has the data of the tests.

/** Address and sign of each page. */
export const pages = {
  overview: ['#/', 'Connections'],
  topics: ['#/topics', 'harvest'],
  topic: ['#/topics/harvest', 'from 1 to 3'],
  groups: ['#/groups', 'crawlers'],
  group: ['#/groups/crawlers', '127.1.0.1'],
  host: ['#/groups/crawlers/hosts/127.1.0.1', '/p/4'],
  jobs: ['#/jobs', 'gazette'],
  job: ['#/jobs/gazette', 'gazette'],
  crawlers: ['#/crawlers', 'crawlers'],
  dead: ['#/dead', '/broken/4'],
  schedules: ['#/schedules', '/p/6'],
  results: ['#/results', 'page-ready'],
  system: ['#/system', 'Version'],
};

/**
 * Shows a page, and waits until it has its data. The page before goes in a task of its own, after the
 * address has changed; it may have the same sign.
 */
export async function show({ page }, [hash, sign]) {
  await page.evaluate(to => {
    if (location.hash !== to) {
      document.querySelector('main > .page')?.setAttribute('data-before', '');
      location.hash = to;
    }
  }, hash);
  await page.locator('main:not(:has(> [data-before]))').getByText(sign).filter({ visible: true })
    .first().waitFor();
}
