// Colours. Clusters wear few colours that everybody can tell apart, those of their first tokens; by origin there is one for every place.

function oklch(lightness, chroma, hue) {
  const a = chroma * Math.cos(hue), b = chroma * Math.sin(hue);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((c) => {
    const v = Math.min(1, Math.max(0, c));
    return Math.round(255 * (v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055));
  });
}

const css = ([r, g, b]) => `rgb(${r} ${g} ${b})`;
const HUE_STEPS = 72, LIGHT_STEPS = 7;

function placeColor(x, y, z, dark) {
  const hue = Math.round((Math.atan2(y, x) / (2 * Math.PI)) * HUE_STEPS) / HUE_STEPS * 2 * Math.PI + 0.5;
  const lift = Math.round(z * (LIGHT_STEPS >> 1)) / (LIGHT_STEPS >> 1);
  const near = Math.min(1, Math.hypot(x, y) * 1.6);
  return css(oklch((dark ? 0.74 : 0.6) + 0.13 * lift, (dark ? 0.135 : 0.15) * near, hue));
}

const SEQUENCE = { light: [[16, 36, 63], [28, 79, 124], [43, 127, 153], [88, 169, 143], [169, 194, 122], [214, 176, 62]],
  dark: [[245, 225, 150], [201, 205, 128], [116, 190, 160], [70, 156, 190], [72, 116, 190], [92, 84, 160]] };

export function ramp(stops, u) {
  const at = Math.min(0.999999, Math.max(0, u)) * (stops.length - 1), i = Math.floor(at), f = at - i;
  return stops[i].map((c, k) => Math.round(c + f * (stops[i + 1][k] - c)));
}

// Ten colours, found by search: any two differ by at least 13.8 (CIEDE2000) for normal eyes and for deuteranopia, protanopia and
// tritanopia (Machado et al. 2009, severity 1), and by a contrast of at least 3:1 from the ball behind them.
export const CLUSTERS = {
  light: ["#008870", "#e85888", "#000040", "#888800", "#b870d0", "#700000", "#004058", "#885840", "#7058a0", "#280010"],
  dark: ["#a0e8d0", "#b84070", "#d0e870", "#7058b8", "#e88888", "#008888", "#e8b8e8", "#a0a028", "#a088e8", "#707000"],
};

const LASTING = 0.06, STRIDE = 6;

// Who leads a cluster: the first tokens of the last clusters, then those of clusters that last and Renyi centers, the longest ones first:
// who is seen for long has a colour of its own as far as there are any.
function leadersOf(run) {
  const { tokens, leaders } = run, many = run.labelled === run.frames ? Math.floor((run.frames - 1) / STRIDE) : 0;
  const ending = new Set(many ? leaders.subarray((run.frames - 1) * tokens, run.frames * tokens) : []), led = new Uint16Array(tokens), size = new Uint16Array(tokens);
  for (let f = 0; f < many; f++) {
    size.fill(0);
    for (let k = 0; k < tokens; k++) if (++size[leaders[f * STRIDE * tokens + k]] === 2) led[leaders[f * STRIDE * tokens + k]]++;
  }
  const others = new Set(run.facts.centers.filter((k) => k < tokens));
  led.forEach((frames, k) => { if (frames > LASTING * many) others.add(k); });
  return [...[...ending].sort((a, b) => a - b), ...[...others].filter((k) => !ending.has(k)).sort((a, b) => led[b] - led[a] || a - b)];
}

// Token k prefers colour k (modulo ten), so that a leader keeps its colour when others come and go; one that is taken is replaced by a free
// one, and when none is free by that whose bearers are farthest away. All others wear the colour of the nearest leader before them.
function clusterColors(run, dark) {
  const { tokens, components: c, positions } = run, colors = CLUSTERS[dark ? "dark" : "light"];
  if (!run.facts) return new Array(tokens).fill(dark ? "#929ca9" : "#66707c");
  const near = (i, j) => { let dot = 0; for (let a = 0; a < c; a++) dot += positions[i * c + a] * positions[j * c + a]; return dot; };
  const chosen = new Map(), bearers = colors.map(() => []);
  for (const k of leadersOf(run)) {
    let pick = k % colors.length;
    if (bearers[pick].length) {
      const free = colors.findIndex((_, i) => !bearers[(pick + i) % colors.length].length);
      if (free >= 0) pick = (pick + free) % colors.length;
      else {
        const closest = bearers.map((list) => Math.max(...list.map((j) => near(k, j))));
        pick = closest.indexOf(Math.min(...closest));
      }
    }
    bearers[pick].push(k);
    chosen.set(k, colors[pick]);
  }
  const leaders = [...chosen.keys()].sort((a, b) => a - b);
  return Array.from({ length: tokens }, (_, k) => {
    if (chosen.has(k)) return chosen.get(k);
    let best = leaders[0], most = -2;
    for (const j of leaders) { if (j > k) break; const dot = near(k, j); if (dot > most) { most = dot; best = j; } }
    return chosen.get(best) ?? colors[0];
  });
}

// The colour of each token for itself: of its cluster, by where it began, or by its place in the sequence.
export function tokenColors(run, mode, dark) {
  if (mode === "cluster") return clusterColors(run, dark);
  const { tokens, components, positions } = run;
  const colors = new Array(tokens);
  for (let k = 0; k < tokens; k++) {
    if (mode === "order") colors[k] = css(ramp(SEQUENCE[dark ? "dark" : "light"], k / Math.max(1, tokens - 1)));
    else colors[k] = placeColor(positions[k * components], positions[k * components + 1], components > 2 ? positions[k * components + 2] : 0, dark);
  }
  return colors;
}

const HEAT = { light: [[251, 250, 246], [201, 223, 230], [111, 169, 194], [38, 97, 143], [16, 36, 63]],
  dark: [[20, 25, 31], [24, 52, 84], [38, 106, 150], [110, 178, 205], [244, 240, 214]] };
export const heat = (u, dark) => ramp(HEAT[dark ? "dark" : "light"], u);

export function theme() {
  const style = getComputedStyle(document.documentElement);
  const read = (name) => style.getPropertyValue(`--${name}`).trim();
  return {
    dark: document.documentElement.dataset.theme === "dark",
    paper: read("paper"), panel: read("panel"), ink: read("ink"), soft: read("soft"), muted: read("muted"), faint: read("faint"),
    edge: read("edge"), hair: read("hair"), accent: read("accent"), theory: read("theory"), strong: read("strong"), sans: read("sans"), serif: read("serif"),
  };
}
