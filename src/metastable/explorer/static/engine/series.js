// Attention on the circle as a Fourier series: exp(beta (cos t - 1)) = sum over m of c_m cos(m t), c_m = 2 exp(-beta) I_m(beta). The sums
// over earlier tokens are sums per mode that grow from token to token: n M operations instead of n^2 / 2 (`metastable.kernels`, series).

const EXACT = 1e-11; // of a sum over all tokens
const FLATTEST = 1e-3; // smallest beta
const PER_MODE = 0.75; // a mode of a token costs so much of a pair

// c_0, c_1, ... by Miller's downward recurrence; all of them add up to 1.
export function coefficients(beta, tokens) {
  let last = 16 + Math.ceil(2 * Math.sqrt(2 * beta * Math.log(tokens / EXACT)));
  const c = new Float64Array(last + 2);
  c[last] = 1e-280;
  let sum = c[last];
  for (let m = last; m > 0; m--) {
    c[m - 1] = (m === 1 ? 0.5 : 1) * ((2 * m * c[m]) / beta + c[m + 1]);
    sum += c[m - 1];
    if (sum > 1e200) { for (let i = m - 1; i < c.length; i++) c[i] *= 1e-200; sum *= 1e-200; }
  }
  while (last > 0 && (c[last] / sum) * (1 + last / beta) * tokens < EXACT) last--;
  return c.subarray(0, last + 1).map((value) => value / sum);
}

export class Series {
  // A series where it is cheaper than sums over so many pairs, else null. Everybody sees itself and all before it.
  static where({ heads: [{ beta }], ranges, dim, frozen }, tokens, pairs) {
    if (dim !== 2 || !(beta > FLATTEST) || !ranges.every((range, k) => range.length === 2 && range[0] === 0 && range[1] === k + 1)) return null;
    if (PER_MODE * tokens * Math.sqrt(2 * beta) > pairs) return null; // without looking closer
    const series = new Series(beta, tokens, frozen);
    return PER_MODE * tokens * series.weights.length < pairs ? series : null;
  }

  constructor(beta, tokens, frozen) {
    this.beta = beta;
    this.tokens = tokens;
    this.weights = coefficients(beta, tokens + (frozen ? frozen.weights.reduce((sum, mass) => sum + mass, 0) : 0));
    this.even = new Float64Array(this.weights.length);
    this.odd = new Float64Array(this.weights.length);
    this.fixed = [this.even.slice(), this.odd.slice()]; // what frozen tokens give
    for (let j = 0; j < (frozen?.count ?? 0); j++) {
      const angle = Math.atan2(frozen.places[2 * j + 1], frozen.places[2 * j]);
      this.weights.forEach((weight, m) => { this.fixed[0][m] += frozen.weights[j] * weight * Math.cos(m * angle); this.fixed[1][m] += frozen.weights[j] * weight * Math.sin(m * angle); });
    }
  }

  // Sum of weights times sines over the sum of weights, for unit tokens x (n x 2): how fast each token turns. The sum of weights times sines
  // is 1 / beta times the slope of the sum of weights.
  turns(x, out) {
    const { weights, even, odd, tokens, beta, fixed } = this, modes = weights.length;
    even.set(fixed[0]); odd.set(fixed[1]);
    for (let k = 0; k < tokens; k++) {
      const c1 = x[2 * k], s1 = x[2 * k + 1];
      let c = 1, s = 0, z = 1, slope = 0;
      for (let m = 0; m < modes; m++) {
        const a = even[m], b = odd[m], weight = weights[m], next = c * c1 - s * s1;
        z += c * a + s * b;
        slope += m * (c * b - s * a);
        even[m] = a + weight * c;
        odd[m] = b + weight * s;
        s = s * c1 + c * s1;
        c = next;
      }
      out[k] = slope / (beta * z);
    }
  }
}
