import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import t, { type Test } from 'tap'
import { loadModelFiles } from '../../../../../src/proxy/tokens/model/load-model-files.ts'

const COMMIT = '0123456789abcdef0123456789abcdef01234567'

const FILES: Record<string, string> = {
  'tokenizer.json': '{"model": {}}',
  'tokenizer_config.json': '{"eos_token": "</s>"}',
  'chat_template.jinja': 'template',
  'config.json': '{"max_position_embeddings": 4096, "eos_token_id": 2}',
  'generation_config.json': '{"eos_token_id": [2, 7]}',
  'model.safetensors': 'unused weights',
}

/** A fake hub: describes one model, and redirects its files as the hub does. */
async function startHub(t: Test, files = FILES, token?: string) {
  const requests: string[] = []
  const respond = (request: IncomingMessage, response: ServerResponse) => {
    requests.push(request.url!)
    const allowed = token === undefined || request.headers.authorization === `Bearer ${token}`
    const file = request.url!.split('/').at(-1)!
    if (!allowed) response.writeHead(401).end()
    else if (['main', COMMIT].some((name) => request.url === `/api/models/org/model/revision/${name}`)) {
      const siblings = Object.keys(files).map((rfilename) => ({ rfilename }))
      response.end(JSON.stringify({ sha: COMMIT, siblings }))
    } else if (request.url!.startsWith(`/org/model/resolve/${COMMIT}/`)) {
      response.writeHead(302, { location: `/cdn/${file}` }).end()
    } else if (request.url!.startsWith('/cdn/') && files[file] === 'breaks off') {
      response.writeHead(200, { 'content-length': 100 }).write('half')
      setImmediate(() => response.destroy())
    } else if (request.url!.startsWith('/cdn/')) response.end(files[file])
    else response.writeHead(404).end()
  }
  const server = createServer(respond)
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  t.teardown(() => server.close())
  return { endpoint: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, requests }
}

t.test('a directory and a tokenizer.json are used directly', async (t) => {
  const directory = t.testdir({ ...FILES, empty: {}, 'other.json': '{}' })
  const expected = { directory, contextLength: 4096, eosTokenIds: [2, 7] }
  t.same(await loadModelFiles(directory), expected)
  t.same(await loadModelFiles(`${directory}/tokenizer.json`), expected)
  for (const unusable of ['empty', 'other.json']) {
    await t.rejects(loadModelFiles(`${directory}/${unusable}`), {
      code: 'config_invalid',
      message: /tokenizer\.json/,
    })
  }
})

t.test('a model without a tokenizer.json has the tokenizer that its authors publish', async (t) => {
  const directory = t.testdir({ kimi: { 'tiktoken.model': '' }, mistral: { 'tekken.json': '{}' } })
  for (const [model, file] of [
    ['kimi', 'tiktoken.model'],
    ['mistral', 'tekken.json'],
  ]) {
    for (const source of [model, `${model}/${file}`])
      t.match(await loadModelFiles(`${directory}/${source}`), { directory: `${directory}/${model}` })
  }
})

t.test('limits are read from the existing configs', async (t) => {
  const directory = t.testdir({
    none: { 'tokenizer.json': '{}' },
    nested: {
      'tokenizer.json': '{}',
      'config.json': '{"text_config": {"max_position_embeddings": 8, "eos_token_id": 1}}',
    },
    old: { 'tokenizer.json': '{}', 'config.json': '{"n_positions": 1024}' },
    broken: { 'tokenizer.json': '{}', 'config.json': '{' },
  })
  t.match(await loadModelFiles(`${directory}/none`), { contextLength: undefined, eosTokenIds: { length: 0 } })
  t.match(await loadModelFiles(`${directory}/nested`), { contextLength: 8, eosTokenIds: [1] })
  t.match(await loadModelFiles(`${directory}/old`), { contextLength: 1024, eosTokenIds: { length: 0 } })
  await t.rejects(loadModelFiles(`${directory}/broken`), { code: 'config_invalid', message: /config\.json/ })
})

t.test('a model id is downloaded once, without its weights', async (t) => {
  const hub = await startHub(t)
  const cache = t.testdir({})
  const environment = { HF_HOME: cache, HF_ENDPOINT: `${hub.endpoint}/` }
  const files = await loadModelFiles('org/model', { environment })
  const snapshot = `${cache}/hub/models--org--model/snapshots/${COMMIT}`
  t.same(files, { directory: snapshot, contextLength: 4096, eosTokenIds: [2, 7] })
  const { 'model.safetensors': _, ...expectedFiles } = FILES
  t.same(readdirSync(snapshot).sort(), Object.keys(expectedFiles).sort())
  for (const [file, text] of Object.entries(expectedFiles))
    t.equal(readFileSync(`${snapshot}/${file}`, 'utf8'), text)
  t.equal(readFileSync(`${cache}/hub/models--org--model/refs/main`, 'utf8'), COMMIT)

  const requestsBefore = hub.requests.length
  t.same(await loadModelFiles('org/model', { environment }), files)
  t.equal(hub.requests.length, requestsBefore, 'the second time the hub receives no request')
})

t.test('a model without a tokenizer.json is downloaded with the files that replace it', async (t) => {
  const { 'tokenizer.json': _, ...others } = FILES
  const published = { 'tiktoken.model': 'ranks', 'tokenization_kimi.py': 'code', 'tekken.json': '{}' }
  const [hub, cache] = [await startHub(t, { ...others, ...published }), t.testdir({})]
  const environment = { HF_HOME: cache, HF_ENDPOINT: hub.endpoint }
  const { directory } = await loadModelFiles('org/model', { environment })
  for (const [file, text] of Object.entries(published))
    t.equal(readFileSync(`${directory}/${file}`, 'utf8'), text)
  const requestsBefore = hub.requests.length
  t.match(await loadModelFiles('org/model', { environment }), { directory, unlisted: undefined })
  t.equal(hub.requests.length, requestsBefore, 'the second time the hub receives no request')
  const full = await startHub(t, { ...FILES, ...published })
  const both = await loadModelFiles('org/model', {
    environment: { HF_HOME: t.testdir({ other: {} }), HF_ENDPOINT: full.endpoint },
  })
  t.notOk(existsSync(`${both.directory}/tiktoken.model`), 'a tokenizer.json is sufficient')
  t.ok(existsSync(`${both.directory}/tekken.json`), 'which --prompt-encoder may name')
})

t.test('models that other tools cached are found, also offline', async (t) => {
  const model = { refs: { main: `${COMMIT}\n` }, snapshots: { [COMMIT]: FILES } }
  const cache = t.testdir({ 'models--org--model': model })
  for (const variable of ['HF_HUB_CACHE', 'HUGGINGFACE_HUB_CACHE']) {
    const environment = { [variable]: cache, HF_HUB_OFFLINE: '1' }
    t.match(await loadModelFiles('org/model', { environment }), { contextLength: 4096 })
    await t.rejects(loadModelFiles('org/other', { environment }), {
      code: 'config_invalid',
      message: /OFFLINE/,
    })
  }
})

t.test('models that other tools downloaded partly are completed', async (t) => {
  const { 'generation_config.json': _, ...part } = FILES
  const model = { refs: { main: COMMIT }, snapshots: { [COMMIT]: part } }
  const cache = t.testdir({ 'models--org--model': model })
  const offline = { HF_HUB_CACHE: cache, HF_HUB_OFFLINE: '1' }
  const unlisted = /^generation_config\.json,|,generation_config\.json,/
  const nowhere = { HF_HUB_CACHE: cache, HF_ENDPOINT: 'http://127.0.0.1:1' }
  for (const environment of [offline, nowhere]) {
    const files = await loadModelFiles('org/model', { environment })
    t.same(files.eosTokenIds, [2], 'the partial model is used if the hub is unreachable')
    t.match(files.unlisted?.join(), unlisted, 'and the missing files are reported')
  }

  const hub = await startHub(t)
  const environment = { HF_HUB_CACHE: cache, HF_ENDPOINT: hub.endpoint }
  const files = await loadModelFiles('org/model', { environment })
  t.same(files.eosTokenIds, [2, 7])
  t.equal(files.unlisted, undefined)
  t.notOk(
    hub.requests.some((url) => url.endsWith('/tokenizer.json')),
    'only missing files are downloaded',
  )
  const requestsBefore = hub.requests.length
  t.same(await loadModelFiles('org/model', { environment }), files)
  t.equal(hub.requests.length, requestsBefore, 'files that the model does not have are not requested again')
  t.same(await loadModelFiles('org/model', { environment: offline }), files)
})

t.test('a prompt encoder is downloaded, also one that another tool omitted', async (t) => {
  const { 'chat_template.jinja': _, ...plain } = FILES
  const encoder = 'encoding/encoding_x.py'
  const tests = 'encoding/test_encoding_x.py'
  const hub = await startHub(t, { ...plain, [encoder]: '', 'encoding_x.py': 'code', [tests]: '' })
  const model = { refs: { main: COMMIT }, snapshots: { [COMMIT]: plain } }
  const directory = t.testdir({ empty: {}, part: { 'models--org--model': model } })
  for (const cache of ['empty', 'part']) {
    const environment = { HF_HUB_CACHE: `${directory}/${cache}`, HF_ENDPOINT: hub.endpoint }
    const files = await loadModelFiles('org/model', { environment })
    t.ok(existsSync(`${files.directory}/${encoder}`))
    t.notOk(existsSync(`${files.directory}/${tests}`))
    const requests = hub.requests.length
    t.same(await loadModelFiles('org/model', { environment }), files)
    t.equal(hub.requests.length, requests, 'the second time the hub receives no request')
  }
})

t.test('a token gives access to private models', async (t) => {
  const hub = await startHub(t, FILES, 'secret')
  const environment = { HF_HOME: t.testdir({}), HF_ENDPOINT: hub.endpoint }
  await t.rejects(loadModelFiles('org/model', { environment }), {
    code: 'config_invalid',
    message: /401.*HF_TOKEN/,
  })
  t.match(await loadModelFiles('org/model', { environment: { ...environment, HF_TOKEN: 'secret' } }), {
    contextLength: 4096,
  })
})

t.test('an interrupted download leaves no files that look like a model', async (t) => {
  const cache = t.testdir({})
  const broken = await startHub(t, { ...FILES, 'config.json': 'breaks off' })
  const failed = loadModelFiles('org/model', {
    environment: { HF_HOME: cache, HF_ENDPOINT: broken.endpoint },
  })
  await t.rejects(failed, { code: 'start_failed', message: /org\/model/ })
  const repository = `${cache}/hub/models--org--model`
  t.notOk(existsSync(`${repository}/refs/main`))
  t.notOk(readdirSync(`${repository}/snapshots/${COMMIT}`).some((file) => file.includes('incomplete')))

  const full = await startHub(t)
  const environment = { HF_HOME: cache, HF_ENDPOINT: full.endpoint }
  t.match(
    await loadModelFiles('org/model', { environment }),
    { contextLength: 4096 },
    'the next attempt succeeds',
  )
})

t.test('models that cannot be loaded are rejected with the reason', async (t) => {
  const cache = t.testdir({})
  const { 'tokenizer.json': _, ...withoutTokenizer } = FILES
  const hub = await startHub(t, withoutTokenizer)
  const environment = { HF_HOME: cache, HF_ENDPOINT: hub.endpoint }
  await t.rejects(loadModelFiles('org/unknown', { environment }), { code: 'config_invalid', message: /404/ })
  await t.rejects(loadModelFiles('org/model', { environment }), {
    code: 'config_invalid',
    message: /has none of tokenizer\.json/,
  })
  const nowhere = { HF_HOME: cache, HF_ENDPOINT: 'http://127.0.0.1:1' }
  await t.rejects(loadModelFiles('org/model', { environment: nowhere }), {
    code: 'start_failed',
    message: /no org\/model on this machine/,
  })
})

t.test('a name that is neither local nor a model id never reaches a URL or a path', async (t) => {
  for (const source of ['../secrets', 'a/b/c', 'org/..', 'org/mo del', '', '/no/such/directory', 'a--b/c']) {
    await t.rejects(
      loadModelFiles(source, { environment: {} }),
      { code: 'config_invalid', message: /model id/ },
      source,
    )
  }
})
