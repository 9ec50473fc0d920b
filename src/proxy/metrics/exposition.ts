/**
 * The two text formats that monitoring systems read: Prometheus 0.0.4
 * (https://prometheus.io/docs/instrumenting/exposition_formats/) and OpenMetrics 1.0
 * (https://github.com/prometheus/OpenMetrics/blob/main/specification/OpenMetrics.md).
 */
import type { Exemplar, MetricFamily, MetricSample } from './families.ts'

/** The response to a scrape. */
export interface Exposition {
  contentType: string
  text: string
}

/**
 * Formats the families. A client that does not accept OpenMetrics receives the Prometheus format.
 * @param accept the `Accept` header
 */
export function expose(families: readonly MetricFamily[], accept = ''): Exposition {
  const isOpenMetrics = accept.includes('application/openmetrics-text')
  const text = families.map((family) => formatFamily(family, isOpenMetrics)).join('')
  return isOpenMetrics
    ? { contentType: 'application/openmetrics-text; version=1.0.0; charset=utf-8', text: `${text}# EOF\n` }
    : { contentType: 'text/plain; version=0.0.4; charset=utf-8', text }
}

function formatFamily(family: MetricFamily, isOpenMetrics: boolean): string {
  const { name, type, help } = family
  // OpenMetrics omits the sample's `_total` suffix from the name of a counter family.
  const familyName = isOpenMetrics && type === 'counter' ? name.replace(/_total$/, '') : name
  const lines = [`# HELP ${familyName} ${escapeText(help)}`, `# TYPE ${familyName} ${type}`]
  for (const sample of family.listSamples()) lines.push(formatSample(name, sample, isOpenMetrics))
  return `${lines.join('\n')}\n`
}

function formatSample(
  name: string,
  { suffix, labels, value, exemplar }: MetricSample,
  isOpenMetrics: boolean,
): string {
  const line = `${name}${suffix}${formatLabels(labels)} ${formatNumber(value)}`
  return isOpenMetrics && exemplar ? line + formatExemplar(exemplar) : line
}

function formatExemplar({ labels, value, atMs }: Exemplar): string {
  return ` # ${formatLabels(Object.entries(labels))} ${formatNumber(value)} ${atMs / 1_000}`
}

function formatLabels(labels: MetricSample['labels']): string {
  if (labels.length === 0) return ''
  return `{${labels.map(([name, value]) => `${name}="${escapeLabel(value)}"`).join(',')}}`
}

function formatNumber(value: number): string {
  if (Number.isFinite(value)) return String(value)
  return Number.isNaN(value) ? 'NaN' : value > 0 ? '+Inf' : '-Inf'
}

function escapeText(text: string): string {
  return text.replace(/\\/g, '\\\\').replace(/\n/g, '\\n')
}

function escapeLabel(value: string): string {
  return escapeText(value).replace(/"/g, '\\"')
}
