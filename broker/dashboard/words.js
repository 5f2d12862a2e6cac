// Sentences that occur on several pages.

import { NONE } from './format.js';

/** Of figures of requests. The other totals of a group or a job are kept over restarts. */
export const SINCE = 'since the start';

const WAITS = {
  'in-flight': 'a crawler works on one of its URLs',
  delay: 'it rests between two requests',
  pace: 'robots.txt asks for a longer rest',
  'not-before': 'its server asked to wait (Retry-After)',
  down: 'its host does not answer, and is tried again after a rest',
  retry: 'its last attempt failed; it is tried again',
  later: 'it is not due yet',
  rule: 'a rule of an operator holds it',
  'group-paused': 'the group is paused',
  'job-paused': 'its job is paused',
  'job-held': 'its job begins when it is closed',
  budget: 'the budget of its job is used up',
  job: 'its jobs release nothing at present',
  'unpublished-events': 'events of the group could not be published yet',
  'no-members': 'no crawler takes tasks',
  'no-credit': 'no crawler has room',
  'no-render-member': 'no crawler has a browser',
  'no-render-credit': 'all browsers are busy',
  free: 'nothing; its next request may begin',
};

/** Why a key or URL waits: a word of `because=` as a sentence. A word of a newer broker stays. */
export function waits(word) {
  return WAITS[word] ?? word;
}

const STATES = {
  topic: {
    ok: ['ok', 'takes events'],
    full: ['bad', 'takes nothing: the disk is full'],
    'sync-failed': ['bad', 'takes nothing: the disk failed'],
  },
  job: {
    open: ['busy', 'open'],
    closed: ['busy', 'running'],
    paused: ['warn', 'paused'],
    done: ['ok', 'done'],
  },
  member: {
    active: ['ok', 'active'],
    silent: ['warn', 'silent'],
    draining: ['busy', 'draining'],
    drained: ['off', 'drained'],
    away: ['bad', 'away'],
  },
  task: {
    pending: ['off', 'waits'],
    retry: ['warn', 'waits for another attempt'],
    queued: ['busy', 'waits for a crawler'],
    processing: ['busy', 'under way'],
    dead: ['bad', 'given up'],
    completed: ['ok', 'done'],
    failed: ['bad', 'failed'],
  },
};

/** The mark and the words of a state: `mark(...state('topic', word))`. */
export function state(kind, word) {
  return STATES[kind]?.[word] ?? ['off', String(word)];
}

/** Why a group gave an entry up: `reason` of a dead letter, and `gave-up` of an event. */
export const GAVE_UP = {
  'max-attempts': 'too many attempts',
  'max-losses': 'lost with its workers',
  'retry-no': 'not worth another attempt',
  down: 'its host did not answer',
};

/** Why a group releases nothing: a value of `why` of the metric `tidings_group_stopped`. */
export const STOPPED = {
  full: 'the disk is full',
  'sync-failed': 'the disk failed',
  fault: 'an error in the broker',
  paused: 'it is paused',
};

/** Why a group releases nothing, by the metrics; `undefined` if it releases tasks. */
export function stoppedWhy({ of }, group) {
  return Object.keys(STOPPED).find(why => of('tidings_group_stopped', { group, why }) === 1);
}

/**
 * The mark and the words of the state of a group. `why`: why it releases nothing, if so; `waiting`
 * is `null` if its figures are not known.
 */
export function groupState({ why, waiting, processing, members }) {
  if (why) {
    return why === 'paused' ? ['warn', 'paused: it releases no task']
      : ['bad', `stands still: ${STOPPED[why] ?? why}`];
  }
  if (waiting === null) {
    return ['off', NONE];
  }
  if (members === 0 && waiting > 0) {
    return ['bad', 'has work but no worker'];
  }
  return waiting > 0 || processing > 0 ? ['busy', 'works'] : ['ok', 'has nothing to do'];
}
