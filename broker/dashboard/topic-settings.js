// The settings of a topic as fields of a form.

const SYNCS = [
  ['always', 'always: confirmed when it is on the disk'],
  ['interval', 'interval: confirmed before it is on the disk'],
  ['memory', 'memory: never on the disk'],
];

/** The fields. A new topic, without values, leaves them to the broker. */
export function settingFields(topic) {
  const options = topic.sync ? SYNCS : [['', 'as the broker is configured'], ...SYNCS];
  // The broker keeps a setting that is left out, so one that has a value cannot be emptied.
  const required = Boolean(topic.sync);
  return [
    { name: 'sync', label: 'Sync', type: 'select', value: topic.sync ?? '', options },
    { name: 'retain-age', label: 'Keep events for', value: topic['retain-age'], required,
      hint: 'Such as 12h or 7d; 0: at any age.' },
    { name: 'retain-bytes', label: 'Keep at most', value: topic['retain-bytes'], required,
      hint: 'Bytes, such as 500m or 2g; 1g is 1,073,741,824.' },
  ];
}
