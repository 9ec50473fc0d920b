/**
 * Test of the modules that Python runs after a start: `npm test` starts it from a snapshot, `npm run
 * test:slow` without one.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import type { PyodideAPI } from 'pyodide'
import type { PyProxy } from 'pyodide/ffi'
import type { Test } from 'tap'
import { MODULES } from '../../../../src/proxy/tokens/templates/python/boot.ts'

const FOLDER = join(import.meta.dirname, '../../../../src/proxy/tokens/templates/python')

/** Writes edited copies of our modules. */
function createEditedModules(folder: string): Record<string, URL> {
  const edited = Object.keys(MODULES).map((name) => {
    const path = join(folder, `${name}.py`)
    const source = readFileSync(join(FOLDER, `${name}.py`), 'utf8')
    writeFileSync(
      path,
      source
        .replace('serialize_reply("text"', 'serialize_reply("edited"')
        .replace('"reasoning_content"', '"edited"'),
    )
    return [name, pathToFileURL(path)] as const
  })
  return Object.fromEntries(edited)
}

interface ChatTemplates extends PyProxy {
  open_template(source: string, specialTokens: string): PyProxy
  render(template: PyProxy, messages: string, tools: string, options: string): string
}

interface Harmony extends PyProxy {
  REASONING_FIELDS: PyProxy & { toJs(): string[] }
}

/** Tests that Python runs our modules in their present version. */
export async function testPresentModules(
  t: Test,
  boot: (modules: typeof MODULES) => Promise<PyodideAPI>,
): Promise<void> {
  const python = await boot(createEditedModules(t.testdir()))
  const templates = python.pyimport('chat_templates') as ChatTemplates
  const template = templates.open_template('{{ messages[0].content }}', '{}')
  const options = JSON.stringify({ add_generation_prompt: true })
  t.equal(
    templates.render(template, '[{"role":"user","content":"hello"}]', 'null', options),
    '{"edited": "hello"}',
  )
  // Imports between the modules are current, too.
  t.equal((python.pyimport('harmony') as Harmony).REASONING_FIELDS.toJs()[0], 'edited')
}
