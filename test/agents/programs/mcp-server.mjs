/** A small MCP server on stdio (https://modelcontextprotocol.io): one tool, with arguments of several types. */
import { createInterface } from 'node:readline'

const inputSchema = {
  type: 'object',
  properties: {
    a: { type: 'number' },
    count: { type: 'integer' },
    names: { type: 'array', items: { type: 'string' } },
    loud: { type: 'boolean' },
  },
  required: ['a'],
}

const METHODS = {
  initialize: ({ protocolVersion }) => ({
    protocolVersion,
    capabilities: { tools: {} },
    serverInfo: { name: 'sums', version: '1' },
  }),
  'tools/list': () => ({ tools: [{ name: 'sum', description: 'Adds.', inputSchema }] }),
  'tools/call': ({ arguments: input }) => ({
    content: [{ type: 'text', text: `got ${JSON.stringify(input)}` }],
  }),
}

for await (const line of createInterface({ input: process.stdin })) {
  const { id, method, params } = JSON.parse(line)
  if (id === undefined) continue
  const response = METHODS[method]
    ? { result: METHODS[method](params) }
    : { error: { code: -32601, message: method } }
  console.log(JSON.stringify({ jsonrpc: '2.0', id, ...response }))
}
