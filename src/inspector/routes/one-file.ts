/** Writes the inspector and its data as one HTML file, for readers without access to the database or the proxy. */
import { createHash } from 'node:crypto'
import { readPageSource } from './page-source.ts'

/** Responses of the API by their paths below its root: JSON values, or binary responses as base64. */
export interface ApiSnapshot {
  json: Record<string, unknown>
  base64: Record<string, string>
}

/**
 * Yields the file in chunks. It loads no other resources, and recorded texts cannot become HTML.
 * @param title plain text
 */
export function* writeOneFilePage(title: string, snapshot: ApiSnapshot): Generator<string> {
  const { script, style } = readPageSource()
  const policy =
    `default-src 'none'; script-src '${hashSource(script)}'; style-src '${hashSource(style)}'; img-src data:; ` +
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'"
  yield `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(title)}</title>
<style>${style}</style>
<body><div id="app"></div>
<script type="application/json" id="recorded">`
  yield '{"json":{'
  yield* writeMembers(snapshot.json)
  yield '},"base64":{'
  yield* writeMembers(snapshot.base64)
  yield `}}</script>
<script type="module">${script}</script>
`
}

/** Yields the members one by one, because together they may exceed the maximum length of a string. */
function* writeMembers(values: Record<string, unknown>): Generator<string> {
  let comma = ''
  for (const [name, value] of Object.entries(values)) {
    yield `${comma}${toScriptJson(name)}:${toScriptJson(value)}`
    comma = ','
  }
}

/** Serializes a value as JSON that can neither end the script element nor open a comment. */
function toScriptJson(value: unknown): string {
  return JSON.stringify(value).replaceAll('<', '\\u003c')
}

function escapeHtml(text: string): string {
  return text.replaceAll('&', '&amp;').replaceAll('<', '&lt;')
}

function hashSource(text: string): string {
  return `sha256-${createHash('sha256').update(text).digest('base64')}`
}
