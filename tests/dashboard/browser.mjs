// Debian's Chromium, driven by playwright-core, with axe-core. Both are in target/node, where
// `tests/run --install` puts them. No other file knows which driver is used.

import { deepStrictEqual as deepEqual } from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';

const require = createRequire(new URL('../../target/node/', import.meta.url));
const { chromium } = require('playwright-core');
const axeSource = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

/**
 * How long a step may take, in ms: half of the limit of a test, so that a step that does not end is
 * named by its script.
 */
export const PATIENCE = 300_000;

const tabs = [];

const CHROMIUM = {
  executablePath: '/usr/bin/chromium',
  args: [
    '--no-sandbox', '--disable-quic',
    // Names of other sites lead to this machine; nothing leaves it.
    '--host-resolver-rules=MAP *.example 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE 127.*, EXCLUDE localhost, EXCLUDE *.localhost',
  ],
};

/**
 * Runs a test with a browser. Prints what it returns as JSON, the last line of the output. Fails if
 * it throws, or if a tab has seen something that it did not expect.
 */
export async function main(test, launch = () => chromium.launch(CHROMIUM)) {
  const browser = await launch();
  try {
    const result = await test(browser);
    const problems = tabs.flatMap(tab => tab.problems());
    if (problems.length > 0) {
      throw new Error(`unexpected in the browser:\n${problems.join('\n')}`);
    }
    console.log(JSON.stringify(result ?? null));
  } catch (error) {
    console.error(error);
    for (const { page } of tabs) {
      const text = await page.locator('body').innerText({ timeout: 1000 }).catch(String);
      console.error(`-- ${page.url()} shows:\n${text.slice(0, 4000)}`);
    }
    process.exitCode = 1;
  } finally {
    await browser.close();
    input.close();
  }
}

/**
 * Starts a browser of which only the tab in front is visible. The driver makes all tabs visible in
 * those that it starts itself.
 */
export async function launchWithHiddenTabs() {
  const profile = mkdtempSync(join(tmpdir(), 'tidings-chromium-'));
  const flags = [
    ...CHROMIUM.args, '--headless', '--remote-debugging-port=0', `--user-data-dir=${profile}`,
  ];
  // The browser ends with this script, however that ends.
  const shell = spawn('sh', [
    '-c', '"$0" "$@" & read -r _; kill $!; wait', CHROMIUM.executablePath, ...flags, 'about:blank',
  ], { stdio: ['pipe', 'ignore', 'pipe'] });
  const ended = new Promise(resolve => shell.on('exit', resolve));
  const lines = createInterface({ input: shell.stderr });
  const endpoint = await new Promise(resolve => lines.on('line', line => {
    const [, address] = /^DevTools listening on (\S+)/.exec(line) ?? [];
    address && resolve(address);
  }));
  const browser = await chromium.connectOverCDP(endpoint, { noDefaults: true });
  const disconnect = browser.close.bind(browser);
  browser.close = async () => {
    await disconnect();
    shell.stdin.end();
    await ended;
    // Its processes write for a moment after it has ended.
    rmSync(profile, { recursive: true, force: true, maxRetries: 50 });
  };
  return browser;
}

const input = createInterface({ input: process.stdin });
const answers = input[Symbol.asyncIterator]();

/** Asks the test that started this script to do something, and returns what came of it. */
export async function tell(what) {
  console.log(`> ${what}`);
  const { done, value } = await answers.next();
  if (done) {
    throw new Error(`nobody has done it: ${what}`);
  }
  return JSON.parse(value);
}

/**
 * Opens a page in a new tab with its own storage. `expected`: patterns of messages that the test
 * provokes; any other message of the console, error, dialog, violation of the page's policy, or
 * request to another origin is a problem. `options` are those of a browser context.
 */
export async function openTab(browser, url, { expected = [], ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  const { origin } = new URL(url);
  const seen = [];
  page.on('console', message => seen.push(`${message.type()}: ${message.text()}`));
  page.on('pageerror', error => seen.push(`error: ${error.stack}`));
  page.on('crash', () => seen.push('the tab has crashed'));
  page.on('dialog', dialog => {
    seen.push(`dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  const requests = [];
  page.on('request', request => {
    requests.push(request);
    if (new URL(request.url()).origin !== origin) {
      seen.push(`request to another origin: ${request.url()}`);
    }
  });
  // Violations of the policy are messages of the console, too, but not all of them at once.
  await context.exposeBinding('reportViolation', (_, text) => seen.push(`policy: ${text}`));
  await context.addInitScript(() => addEventListener('securitypolicyviolation', event =>
    globalThis.reportViolation(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`)));
  const problems = () => seen.filter(text => !expected.some(pattern => pattern.test(text)));
  const history = async () => {
    const cdp = await context.newCDPSession(page);
    const { entries } = await cdp.send('Page.getNavigationHistory');
    await cdp.detach();
    return entries.map(({ url }) => url);
  };
  const tab = { page, context, requests, history, problems };
  tabs.push(tab);
  await page.goto(url);
  return tab;
}

/** Waits until `poll` returns something true, and returns it. */
export async function until(what, poll) {
  const deadline = Date.now() + PATIENCE;
  for (;;) {
    const value = await poll();
    if (value) {
      return value;
    }
    if (Date.now() > deadline) {
      throw new Error(`waited ${PATIENCE} ms for ${what}`);
    }
    await new Promise(resolve => setTimeout(resolve, 20));
  }
}

/** Waits until `read` returns something equal to `wanted`; otherwise fails with the difference. */
export async function untilEqual(what, read, wanted) {
  let found;
  await until(what, async () => {
    found = await read();
    return isDeepStrictEqual(found, wanted);
  }).catch(() => deepEqual(found, wanted, what));
}

/**
 * The violations that axe finds in a part of the page, one line each. It comes by the debugger, past
 * the page's policy.
 */
export async function axeViolations({ page, context }, place) {
  const cdp = await context.newCDPSession(page);
  const evaluate = async expression => {
    const { result, exceptionDetails } = await cdp.send('Runtime.evaluate', {
      expression, awaitPromise: true, returnByValue: true,
    });
    if (exceptionDetails) {
      throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    }
    return result.value;
  };
  await evaluate(axeSource);
  const found = await evaluate(`axe.run('${place}', {
    resultTypes: ['violations'], preload: false, rules: { 'target-size': { enabled: true } },
  }).then(({ violations }) => violations)`);
  await cdp.detach();
  return found.flatMap(({ id, help, nodes }) =>
    nodes.map(({ html, failureSummary }) => `${id}: ${help}: ${html}: ${failureSummary}`));
}
