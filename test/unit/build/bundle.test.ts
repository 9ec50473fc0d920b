import { join } from 'node:path'
import t from 'tap'
import { bundleProgram } from '../../../tools/build/bundle.ts'

const ROOT = join(import.meta.dirname, '../../..')

t.test(
  'the bundle contains the program, its threads and the files that they read, and no build path',
  async (t) => {
    const { main, assets } = await bundleProgram(ROOT, 'linux-x64')
    // A path inside the build directory.
    const keys = [...assets.keys()].filter((key) => !key.endsWith('fastokens.node'))
    t.strictSame(keys.sort(), [
      'node_modules/better-sqlite3/prebuilds/linux-x64.node',
      'node_modules/pyodide/pyodide.asm.mjs',
      'node_modules/pyodide/pyodide.asm.wasm',
      'node_modules/pyodide/python_stdlib.zip',
      'node_modules/tokenizers/tokenizers.linux-x64-gnu.node',
      'src/embedded/model/ngrams.bin',
      'src/embedded/model/tokenizer.json',
      'src/embedded/model/tokenizer_config.json',
      'src/inspector/routes/page.json',
      'src/proxy/http/operator/health/health-thread.ts',
      'src/proxy/store/postgres/reader-thread.ts',
      'src/proxy/store/postgres/writer-thread.ts',
      'src/proxy/store/sqlite/reader-thread.ts',
      'src/proxy/store/sqlite/writer-thread.ts',
      'src/proxy/tokens/prompt/encoder-process.ts',
      'src/proxy/tokens/prompt/prompt-thread.ts',
      'src/proxy/tokens/responses/response-thread.ts',
      'src/proxy/tokens/templates/python/chat_templates.py',
      'src/proxy/tokens/templates/python/encoder_tracing.py',
      'src/proxy/tokens/templates/python/encoder_words.py',
      'src/proxy/tokens/templates/python/harmony.py',
      'src/proxy/tokens/templates/python/mistral_encoder.py',
      'src/proxy/tokens/templates/python/model_encoder.py',
      'src/proxy/tokens/templates/python/python.snapshot',
      'src/proxy/tokens/templates/python/regex.py',
      'src/proxy/tokens/templates/python/response_reader.py',
      'src/proxy/tokens/templates/python/specialize.py',
      'src/proxy/tokens/templates/python/template_messages.py',
      'src/proxy/tokens/templates/python/template_words.py',
      'src/proxy/tokens/templates/python/vendor/jinja2-3.1.6-py3-none-any.whl',
      'src/proxy/tokens/templates/python/vendor/markupsafe-3.0.4-cp314-cp314-win_arm64.whl',
      'src/proxy/tokens/templates/python/vendor/transformers-5.24.0-chat_parsing.zip',
      'src/proxy/tokens/tokenizer/long-text-thread.ts',
    ])
    const scripts = [...assets].filter(([key]) => key.endsWith('.ts')).map(([, script]) => String(script))
    for (const script of [main, ...scripts]) {
      t.notOk(script.includes(ROOT))
    }
  },
)

t.test('each platform gets its own native module', async (t) => {
  // Bundles of the two modules that load them take a tenth of the time of one of the program.
  for (const [entry, module] of [
    ['src/proxy/store/sqlite/database.ts', 'node_modules/better-sqlite3/prebuilds/darwin-x64.node'],
    ['src/proxy/tokens/tokenizer/rust-tokenizer.ts', 'node_modules/tokenizers/tokenizers.darwin-x64.node'],
  ] as const) {
    const { assets } = await bundleProgram(ROOT, 'darwin-x64', { entry })
    t.strictSame([...assets.keys()], [module])
  }
})
