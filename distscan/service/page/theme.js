// Light or dark: as the system has it, or as the user has chosen. This runs before the page is drawn.
(() => {
  "use strict";
  const KEY = "distscan-theme";
  const NEXT = { auto: "light", light: "dark", dark: "auto" };
  const SIGNS = { auto: "◐", light: "☀", dark: "☾" };
  let theme = localStorage.getItem(KEY);
  if (!(theme in NEXT)) theme = "auto";

  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  };

  apply();
  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const show = () => {
      button.textContent = `${SIGNS[theme]} ${theme}`;
      button.setAttribute("aria-label", `Colours: ${theme}. Change to ${NEXT[theme]}`);
    };
    show();
    button.addEventListener("click", () => {
      theme = NEXT[theme];
      localStorage.setItem(KEY, theme);
      apply();
      show();
    });
  });
})();
