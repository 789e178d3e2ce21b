// A chart that takes the wheel holds the page fast: whoever scrolls must get past it.
//
// ECharts keeps every wheel from the page wherever a wheel with Ctrl would zoom, so a wheel alone must not reach it.

/** Let the wheel alone scroll the page; with Ctrl it goes on to the chart in this element. */
export function leaveWheel(element) {
  const keep = (event) => {
    if (!event.ctrlKey) event.stopPropagation();
  };
  for (const name of ["wheel", "mousewheel"]) element.addEventListener(name, keep, { capture: true, passive: true });
}
