// A line of figures, as high as a line of text.

const SVG = 'http://www.w3.org/2000/svg';
const [WIDTH, HEIGHT] = [72, 18];
// The line, which is 1.5 wide, stays within the picture.
const EDGE = 1;
// Seconds of which the mean is one point. They do not move with the time of the request.
const STEP = 5;

/**
 * The line of `values`, from 0 to the highest point; unknown ones are `null`. `times`: their
 * seconds, oldest first. `label` says the highest point as text. `null` if all are unknown.
 */
export function sparkline(times, values, label) {
  const steps = new Map(times.map(time => [Math.floor(time / STEP), []]));
  times.forEach((time, index) => values[index] !== null &&
    steps.get(Math.floor(time / STEP)).push(values[index]));
  const points = [...steps.values()].map(mean);
  const known = points.filter(value => value !== null);
  if (known.length === 0) {
    return null;
  }
  const most = Math.max(...known);
  const x = index => (index * WIDTH / (points.length - 1)).toFixed(1);
  const y = value =>
    (HEIGHT - EDGE - (most > 0 ? value / most : 0) * (HEIGHT - 2 * EDGE)).toFixed(1);
  // A point without one before it begins a line of its own; a line of no length is a dot.
  const line = points.map((value, index) => (value === null ? ''
    : `${(points[index - 1] ?? null) === null ? 'M' : 'L'}${x(index)} ${y(value)}h0`));
  const svg = document.createElementNS(SVG, 'svg');
  const path = document.createElementNS(SVG, 'path');
  const attributes = {
    class: 'spark', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': label(most),
  };
  Object.entries(attributes).forEach(([name, value]) => svg.setAttribute(name, value));
  path.setAttribute('d', line.join(''));
  svg.append(path);
  return svg;
}

const mean = values => (values.length === 0 ? null
  : values.reduce((sum, value) => sum + value, 0) / values.length);
