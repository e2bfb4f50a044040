// Inside the frame of an enlarged chart: draws what the page sends with Plotly, and tells it how that went.

const page = (message) => window.parent.postMessage(message, location.origin);

window.addEventListener("message", async (event) => {
  if (event.origin !== location.origin || event.source !== window.parent) return;
  const { traces, layout, config } = event.data;
  await window.Plotly.newPlot("chart", traces, layout, config);
  page({ drawn: traces.length });
});
window.addEventListener("keydown", (event) => { if (event.key === "Escape") page({ close: true }); });

if (window.Plotly) page({ ready: true });
else page({ failed: "The chart library could not be loaded; is the server still running?" });
