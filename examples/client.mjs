// A client of Tidings in JavaScript, with only Node.js:
//   node client.mjs publish TOPIC EVENT..    publishes events, and waits until all are confirmed
//   node client.mjs listen TOPIC [FROM]      prints the seq and payload of each event
// The broker is at $TIDINGS_BROKER, or 127.0.0.1:12345.
import { randomBytes } from 'node:crypto';
import { connect } from 'node:net';

const [command, topic, ...rest] = process.argv.slice(2);
const broker = process.env.TIDINGS_BROKER ?? '127.0.0.1:12345';
const colon = broker.lastIndexOf(':');
const socket = connect({ host: broker.slice(0, colon), port: Number(broker.slice(colon + 1)) });

function fail(text) {
  console.error(`client.mjs: ${text}`);
  process.exit(1);
}

if (!['publish', 'listen'].includes(command) || !topic) fail('usage: publish TOPIC EVENT.. or listen TOPIC [FROM]');
socket.on('error', (error) => fail(error.message));
const say = (line) => socket.write(`${line}\n`);

const echo = randomBytes(8).toString('hex');
say(`HELLO name=client.mjs echo=${echo}`);
if (command === 'publish') for (const event of rest) say(`PUB ${topic} ${event}`);
else say(`SUB ${topic}${rest[0] ? ` from=${rest[0]}` : ''}`);

let greeted = false;
// Not node:readline, which also ends lines at U+2028 and U+2029.
for await (const line of lines(socket)) {
  if (!greeted) {
    // Lines before the answer to HELLO are for peers.
    greeted = line.startsWith('+OK ') && line.includes(` echo=${echo} `);
  } else if (line.startsWith('-ERR ')) {
    fail(line);
  } else if (command === 'publish' && line.startsWith('+OK ')) {
    // One answer may confirm several events: its last number counts all so far.
    if (Number(line.split(' ')[2]) === rest.length) {
      console.log(`${rest.length} confirmed`);
      process.exit(0);
    }
  } else if (line.startsWith('MSG ')) {
    console.log(line.slice(line.indexOf(' ', 4) + 1));
  } else if (/^(LAG|GAP) /.test(line)) {
    console.error(line);
  }
}
fail('connection lost; unconfirmed events may or may not be stored');

async function* lines(stream) {
  let rest = '';
  for await (const text of stream.setEncoding('utf8')) {
    const found = (rest + text).split('\n');
    rest = found.pop();
    yield* found.map((line) => line.replace(/\r$/, ''));
  }
}
