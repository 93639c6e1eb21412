// Runs before the page is painted, so that it never flashes in the wrong theme.
(() => {
  const chosen = localStorage.getItem("canopy.theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
