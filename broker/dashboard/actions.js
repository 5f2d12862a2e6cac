// Buttons that change something, the dialogs before them, and the line that says what came of it.

import { Refusal } from './ask.js';
import { el, replace } from './dom.js';
import { me, needs } from './session.js';

let names = 0;
const unique = prefix => `${prefix}-${(names += 1)}`;

/** Says a sentence in the status line of the page; `null` clears it. */
export function say(text, isBad = false) {
  const line = document.getElementById('said');
  // A screen reader announces only what changes in a line that is there already.
  line.classList.toggle('unseen', !text);
  document.getElementById('said-close').hidden = !text;
  line.classList.toggle('bad', isBad);
  replace(document.getElementById('said-text'), text);
}

// Says what came of an action, unless the session that began it has ended.
function reporter() {
  const session = me();
  return (text, isBad) => me() === session && say(text, isBad);
}

/**
 * A button. `run` does the work and returns the sentence to say, or nothing if the reader changed
 * their mind. Without the permission `right` the button is off and says what is missing.
 */
export function button({ label, right, danger, run }) {
  const missing = needs(right);
  const id = missing && unique('why');
  const node = el('button', {
    type: 'button', class: danger ? 'danger' : null,
    'aria-disabled': missing ? 'true' : null, 'aria-describedby': id,
    onclick: async () => {
      if (node.getAttribute('aria-disabled') === 'true') {
        return;
      }
      node.setAttribute('aria-disabled', 'true');
      node.classList.add('runs');
      const report = reporter();
      try {
        report((await run()) ?? null);
      } catch (error) {
        reportFailure(report, error);
      } finally {
        node.classList.remove('runs');
        node.removeAttribute('aria-disabled');
      }
    },
  }, label);
  return missing
    ? el('span', { class: 'off' }, node, el('span', { id, class: 'why' }, missing)) : node;
}

function reportFailure(report, error) {
  if (error.name !== 'AbortError' && error.status !== 401) {
    report(error instanceof Refusal ? error.message : `Failed: ${error.message}`, true);
  }
}

/**
 * Refreshes a page after an action. `said` is what the action returned: a sentence, or nothing if
 * the reader changed their mind. Resolves to it, with the reason if only the refresh failed.
 */
export async function refreshed(said, refresh) {
  try {
    await (said && refresh());
  } catch (error) {
    // A page that was left needs no refresh.
    if (error.name !== 'AbortError') {
      return `${said} The page could not be refreshed: ${error.message}`;
    }
  }
  return said;
}

/**
 * Asks before something that cannot be undone. `text`: a sentence, a node, or an array of them;
 * `typed`: a name that must be typed. Resolves to whether the reader confirmed.
 */
export function confirm({ title, text, action, typed }) {
  const field = { name: 'typed', label: `Type ${typed} to confirm`, required: true };
  const fields = typed ? [field] : [];
  const check = ({ typed: given }) => (typed && given !== typed ? `This is not ${typed}.` : null);
  return dialog({ title, text, fields, action, danger: true, check }).then(Boolean);
}

/**
 * Asks for values. A field: `{name, label, type, value, hint, required, options}`, `type`: text,
 * number, textarea, checkbox, or select with `options` (texts or pairs of value and label). With
 * `run(values)` the dialog stays open, with the reason, until it succeeds; it returns a sentence to
 * say. Resolves to the values, or `null` if the reader cancelled.
 */
export function form({ title, text, fields, action, run }) {
  return dialog({ title, text, fields, action, run });
}

/** The values of a form that are not empty. */
export function filled(values) {
  return Object.fromEntries(Object.entries(values).filter(([, value]) => (value ?? '') !== ''));
}

function dialog({ title, text, fields, action, danger, check, run }) {
  const id = unique('dialog');
  const controls = fields.map(field => control(field, id));
  const error = el('p', { class: 'error', role: 'alert' });
  const submit = el('button', { type: 'submit', class: danger ? 'danger' : 'primary' }, action);
  const cancel = el('button', { type: 'button', onclick: () => node.close() }, 'Cancel');
  let result = null;
  const onsubmit = async event => {
    event.preventDefault();
    const values = Object.fromEntries(controls.map(each => [each.name, each.value()]));
    const problem = check?.(values);
    if (problem) {
      replace(error, problem);
      return;
    }
    setBusy(true);
    const report = reporter();
    try {
      report((await run?.(values)) ?? null);
      result = values;
      node.close();
    } catch (refusal) {
      replace(error, refusal.message);
    } finally {
      setBusy(false);
    }
  };
  // What is under way cannot be taken back, so the dialog stays until it has ended.
  const setBusy = isBusy => {
    submit.disabled = isBusy;
    cancel.disabled = isBusy;
    node.setAttribute('closedby', isBusy ? 'none' : 'closerequest');
  };
  const oncancel = event => submit.disabled && event.preventDefault();
  const node = el('dialog', { 'aria-labelledby': id, oncancel },
    el('form', { onsubmit, novalidate: false },
      el('h2', { id }, title),
      text && [text].flat().map(each => (each instanceof Node ? each : el('p', {}, each))),
      controls.map(each => each.node), error,
      el('div', { class: 'buttons' }, cancel, submit)));
  document.body.append(node);
  node.showModal();
  if (controls.length === 0) {
    cancel.focus();
  }
  return new Promise(resolve => {
    node.addEventListener('close', () => {
      node.remove();
      resolve(result);
    });
  });
}

function control({ name, label, type = 'text', value, hint, required, options }, prefix) {
  const id = `${prefix}-${name}`;
  const attributes = {
    id, name, required: Boolean(required), autocomplete: 'off', spellcheck: 'false',
    'aria-describedby': hint ? `${id}-hint` : null,
  };
  let input;
  if (type === 'textarea') {
    input = el('textarea', { ...attributes, rows: 4 }, value);
  } else if (type === 'select') {
    input = el('select', attributes, options.map(option => {
      const [key, shown] = [option].flat();
      return el('option', { value: key, selected: key === value }, shown ?? key);
    }));
  } else if (type === 'checkbox') {
    input = el('input', { ...attributes, type, checked: Boolean(value) });
  } else {
    input = el('input', { ...attributes, type, value, step: type === 'number' ? 'any' : null });
  }
  const read = {
    checkbox: () => input.checked,
    number: () => (input.value === '' ? null : Number(input.value)),
  };
  return {
    name,
    value: read[type] ?? (() => input.value.trim()),
    node: el('div', { class: type === 'checkbox' ? 'field check' : 'field' },
      el('label', { for: id }, label), input,
      hint && el('p', { id: `${id}-hint`, class: 'hint' }, hint)),
  };
}
