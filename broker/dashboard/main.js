// Starts the dashboard: session, navigation, and the page that the address names.

import { AWAY } from './ask.js';
import { begin, logout, me, showLogin, start } from './session.js';
import { el, replace } from './dom.js';
import { away, isAway, pause, untilAnswer } from './live.js';
import { say } from './actions.js';
import { visible } from './format.js';

const NAME = '([^/]+)';
const ROUTES = [
  ['#/', 'overview'],
  ['#/topics', 'topics'],
  [`#/topics/${NAME}`, 'topic', 'topic'],
  ['#/groups', 'groups'],
  [`#/groups/${NAME}`, 'group', 'group'],
  [`#/groups/${NAME}/hosts/${NAME}`, 'host', 'group', 'key'],
  ['#/jobs', 'jobs'],
  [`#/jobs/${NAME}`, 'job', 'job'],
  ['#/crawlers', 'crawlers'],
  ['#/dead', 'dead'],
  ['#/schedules', 'schedules'],
  ['#/results', 'results'],
  ['#/system', 'system'],
].map(([pattern, page, ...names]) => ({ pattern: new RegExp(`^${pattern}$`), page, names }));

const NAVIGATION = [
  ['#/', 'Overview'], ['#/topics', 'Topics'], ['#/groups', 'Groups'], ['#/jobs', 'Jobs'],
  ['#/crawlers', 'Crawlers'], ['#/dead', 'Dead letters'], ['#/schedules', 'Schedules'],
  ['#/results', 'Results'], ['#/system', 'System'],
];

const main = document.getElementById('main');
const nav = document.getElementById('nav');
const menu = document.getElementById('menu');
let shown = new AbortController();

// Ends what is shown, so that nothing of it stays on the screen.
function clear() {
  shown.abort();
  shown = new AbortController();
  document.querySelectorAll('dialog').forEach(dialog => dialog.close());
  away(null);
  away(null, 'poll');
  say(null);
  replace(main);
  return shown.signal;
}

function loginPage(reason) {
  clear();
  nav.hidden = true;
  menu.hidden = true;
  sessionPart();
  document.title = 'Log in · Tidings';
  showLogin(main, reason, enter);
}

// Asks for the session and shows the page, or the login.
async function enter() {
  const signal = clear();
  replace(main, el('p', { class: 'empty' }, 'Connecting…'));
  let said = null;
  while (!signal.aborted) {
    try {
      const reason = await begin();
      if (!signal.aborted) {
        await (reason === null ? begun() : loginPage(reason));
      }
    } catch (error) {
      // The same alert is not spoken again.
      if (!signal.aborted && error.message !== said) {
        said = error.message;
        failed(main, error);
      }
      await pause();
    }
  }
}

function begun() {
  nav.hidden = false;
  menu.hidden = false;
  sessionPart();
  return show();
}

// Shows the page that the address names. After a change of the page its heading has the focus.
async function show(isChange = false) {
  const [hash, query] = (location.hash || '#/').split('?');
  const route = ROUTES.find(({ pattern }) => pattern.test(hash));
  const wasAway = isAway();
  const signal = clear();
  if (wasAway) {
    away(AWAY, signal);
    untilAnswer(signal);
  }
  closeMenu();
  markNavigation(hash);
  const params = Object.fromEntries(new URLSearchParams(query));
  try {
    route?.pattern.exec(hash).slice(1).forEach((value, index) => {
      params[route.names[index]] = decodeURIComponent(value);
    });
  } catch {
    // A broken escape names no page.
    notFound();
    return;
  }
  if (!route) {
    notFound();
    return;
  }
  const place = el('div', { class: 'page' });
  document.title = `${route.page[0].toUpperCase()}${route.page.slice(1)} · Tidings`;
  replace(main, place);
  try {
    const page = await load(route.page, place, signal);
    if (signal.aborted) {
      return;
    }
    const title = visible(page.title(params));
    document.title = `${title} · Tidings`;
    const done = page.show(place, params, signal);
    heading(title, isChange);
    await done;
    if (!signal.aborted) {
      heading(title, isChange && document.activeElement === document.body);
    }
  } catch (error) {
    if (signal.aborted) {
      return;
    }
    failed(place, error);
    if (error.code === 'away') {
      await untilAnswer(signal);
      if (!signal.aborted) {
        show(isChange);
      }
    }
  }
}

// The module of a page that could not be loaded before this document was.
const MISSING = 'tidings-missing';

// Loads the module of a page. Browsers remember that they could not load one as long as they have
// the document, so that is loaded again once the broker answers, with the files of that broker.
async function load(page, place, signal) {
  const isSecond = sessionStorage.getItem(MISSING) === page;
  sessionStorage.removeItem(MISSING);
  try {
    return await import(`./pages/${page}.js`);
  } catch (error) {
    if (!(error instanceof TypeError)) {
      throw error;
    }
  }
  instead(place, el('p', { class: 'empty' }, 'Connecting…'));
  await untilAnswer(signal);
  if (isSecond) {
    throw new Error('This page cannot be loaded. Reload it to try again.');
  }
  if (!signal.aborted) {
    sessionStorage.setItem(MISSING, page);
    location.reload();
  }
  // The next document shows the page.
  return new Promise(() => {});
}

// Each page has one h1, its own or this one.
function heading(title, isFocused) {
  const own = main.querySelector('.page h1');
  const given = main.querySelector(':scope > h1');
  if (own && given) {
    given.remove();
  } else if (!own && !given) {
    main.prepend(el('h1', { tabindex: '-1' }, title));
  }
  const h1 = main.querySelector('h1');
  h1.tabIndex = -1;
  if (isFocused) {
    h1.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
}

function notFound() {
  document.title = 'No such page · Tidings';
  replace(main, el('div', { class: 'page' },
    el('h1', { tabindex: '-1' }, 'No such page'),
    el('p', {}, 'This address names no page. ', el('a', { href: '#/' }, 'Go to the overview.'))));
  main.querySelector('h1').focus();
}

function failed(place, error) {
  if (error.status !== 401) {
    instead(place, el('p', { class: 'error', role: 'alert' }, error.message));
  }
}

// Shows a text in place of the content of a page.
function instead(place, text) {
  replace(place, text);
  if (!main.querySelector('h1')) {
    main.prepend(el('h1', { tabindex: '-1' }, document.title.split(' · ')[0]));
  }
}

function markNavigation(hash) {
  for (const link of nav.querySelectorAll('a')) {
    const href = link.getAttribute('href');
    const isHere = href === '#/' ? hash === '#/' : hash === href || hash.startsWith(`${href}/`);
    if (isHere) {
      link.setAttribute('aria-current', 'page');
    } else {
      link.removeAttribute('aria-current');
    }
  }
}

function closeMenu() {
  menu.setAttribute('aria-expanded', 'false');
}

// The identity of the session, the theme, and logout.
function sessionPart() {
  const name = me()?.name;
  const theme = el('select', {
    'aria-label': 'Theme', onchange: event => setTheme(event.target.value),
  }, ['auto', 'light', 'dark'].map(value => {
    return el('option', { value, selected: value === savedTheme() }, `Theme: ${value}`);
  }));
  replace(document.getElementById('session'),
    name && el('span', { class: 'name' }, visible(name)), theme,
    name && el('button', { type: 'button', class: 'quiet', onclick: logout }, 'Log out'));
}

function savedTheme() {
  return localStorage.getItem('tidings-theme') ?? 'auto';
}

function setTheme(theme) {
  localStorage.setItem('tidings-theme', theme);
  applyTheme(theme);
}

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.dispatchEvent(new Event('theme'));
}

start(loginPage);
applyTheme(savedTheme());
replace(nav, el('ul', {}, NAVIGATION.map(([href, label]) =>
  el('li', {}, el('a', { href }, label)))));
menu.addEventListener('click', () => {
  menu.setAttribute('aria-expanded', String(menu.getAttribute('aria-expanded') !== 'true'));
});
nav.addEventListener('click', closeMenu);
document.addEventListener('keydown', event => {
  if (event.key === 'Escape' && menu.getAttribute('aria-expanded') === 'true') {
    closeMenu();
    menu.focus();
  }
});
document.querySelector('.skip').addEventListener('click', event => {
  // The address names the page, so the link must not change it.
  event.preventDefault();
  main.focus();
});
document.getElementById('said-close').addEventListener('click', () => say(null));
window.addEventListener('hashchange', () => {
  if (location.hash.startsWith('#token=')) {
    start(loginPage);
    enter();
  } else if (me()?.can.monitor) {
    show(true);
  }
});
enter();
