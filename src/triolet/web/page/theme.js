// Light or dark, before the first paint: what was chosen here, else what the system prefers.
"use strict";

try {
  const chosen = localStorage.getItem("triolet:theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // Storage is switched off in this browser; the system's preference holds.
}
