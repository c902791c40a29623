// The foot of the page: the model of the chosen languages, and its report.

import { $ } from "./dom.js";
import { languagesAsked } from "./requests.js";
import { on, state } from "./state.js";

const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

on("changed", () => {
  const { source, target } = languagesAsked(true);
  const model = state.settings.models.find(model => model.source === source && model.target === target);
  const report = $("report");
  $("model").textContent = !model ? "" : [
    model.run, `${short.format(model.parameters)} parameters`, ...(model.bleu === null ? [] : [`BLEU ${model.bleu}`])].join(" · ");
  report.hidden = !model?.report;
  report.href = `report/${source}/${target}`;
});
