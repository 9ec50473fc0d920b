/**
 * Configurations of load balancers in front of several nodes, as in docs/nodes.md: the calls of a session go to its own
 * node, everything else to `llm-proxy front`. A node's number is a hash of the session's id (src/proxy/session/state/nodes.ts), which
 * each balancer computes from the path of a call or from the key of its agent.
 *
 *     npm run --silent deploy:balancer -- haproxy :8080 front:8090 node-1:8080 node-2:8080 ... > haproxy.cfg
 */
import { isIP } from 'node:net'

export interface Balanced {
  /** Where the balancer listens: `host:port`; no host: everywhere. */
  listen: string
  /** `host:port` of the front. */
  front: string
  /** `host:port` of every node, number 1 first. */
  nodes: readonly string[]
}

/** What an agent's path ends in, behind the id of its session. */
const AGENT_ROUTE =
  '(?:chat/completions|completions|responses(?:/[^/]+)?|messages(?:/count_tokens)?|models(?:/.*)?)'
const ID_AT_END = '^/v1/chat/completions/(.+)$'
const ID_INSIDE = `^/(?:sessions/)?(.+)/v1/${AGENT_ROUTE}$`
/** An agent's key, which names its session; on a proxy without keys the id itself is the key. */
const AGENT_KEY = '^lp-(.+)-[A-Za-z0-9_-]{43}$'

/** A call may be silent for as long as an engine takes for a whole answer. */
const SILENCE_S = 3_600
/** The default of --max-body-bytes, and a little more: the node itself refuses what is too large. */
const BODY_MIB = 17

const GENERATED = 'Made by deploy/balancers/make.ts; docs/nodes.md tells what it does.'

export function haproxy({ listen, front, nodes }: Balanced): string {
  const quoted = (pattern: string) => `'${pattern}'`
  // What is quoted for the line is quoted once more for the converter, by double quotes.
  const regsub = (pattern: string) => `regsub("${pattern}","\\1")`
  // A pod that is started anew has another address behind its name.
  const hasNames = [front, ...nodes].some((address) => isIP(address.replace(/:\d+$/, '')) === 0)
  const resolving = hasNames ? ' resolvers names' : ''
  const resolvers = `resolvers names
    parse-resolv-conf
    hold valid 5s

`
  const backend = (name: string, address: string) => `backend ${name}
    server ${name} ${address} check init-addr last,libc,none${resolving}
`
  return `# ${GENERATED}
global
    # Paths and keys hold ids of up to 512 bytes, percent-encoded.
    tune.bufsize 32768

${hasNames ? resolvers : ''}defaults
    mode http
    timeout connect 5s
    timeout http-request 1m
    timeout client ${SILENCE_S}s
    timeout server ${SILENCE_S}s
    # A connection that could not be made is tried again, a call that was sent never.
    retries 3
    option httpchk GET /health

frontend calls
    bind ${listen.startsWith(':') ? `*${listen}` : listen}
    acl id_at_end path_reg ${quoted(ID_AT_END)}
    acl id_inside path_reg ${quoted(ID_INSIDE)}
    acl by_key path_beg /v1/
    http-request set-var(txn.id) 'path,${regsub(ID_AT_END)},url_dec' if id_at_end
    http-request set-var(txn.id) 'path,${regsub(ID_INSIDE)},url_dec' if !id_at_end id_inside
    http-request set-var(txn.key) req.hdr(x-api-key) if by_key !id_at_end
    http-request set-var(txn.key) http_auth_bearer if by_key !id_at_end { http_auth_bearer -m found }
    http-request set-var(txn.id) 'var(txn.key),${regsub(AGENT_KEY)},url_dec' if { var(txn.key) -m found }
    http-request set-var(txn.node) var(txn.id),crc32,div(65536),and(32767),mod(${nodes.length}),add(1) if { var(txn.id) -m found }
    use_backend node-%[var(txn.node)] if { var(txn.node) -m found }
    default_backend front

${backend('front', front)}
${nodes.map((address, place) => backend(`node-${place + 1}`, address)).join('\n')}`
}

export function nginx({ listen, front, nodes }: Balanced): string {
  return `# ${GENERATED}
# An id with characters outside of A-Z a-z 0-9 . _ ~ : - is found in a path, and not in a key, where it is percent-encoded.
worker_processes auto;
events { worker_connections 16384; }

http {
    access_log off;
    # The slashes of an id are its own.
    merge_slashes off;
    client_max_body_size ${BODY_MIB}m;
    map_hash_bucket_size 256;

    map $uri $id_in_path {
        "~${ID_AT_END.replace('(.+)', '(?<id_at_end>.+)')}" $id_at_end;
        "~${ID_INSIDE.replace('(.+)', '(?<id_inside>.+)')}" $id_inside;
        default "";
    }
    map $http_authorization $key {
        "~*^Bearer +(?<bearer>.+)$" $bearer;
        default $http_x_api_key;
    }
    map $key $id_in_key {
        "~${AGENT_KEY.replace('(.+)', '(?<id_of_key>.+)')}" $id_of_key;
        default $key;
    }
    map $id_in_path $session_id {
        "" $id_in_key;
        default $id_in_path;
    }
    map "$uri $session_id" $target {
        "~/v1/${AGENT_ROUTE} ." nodes;
        "~^/v1/chat/completions/.+ ." nodes;
        default front;
    }

    upstream nodes {
        hash $session_id;
        # A node that does not answer keeps its sessions: none may go to another one.
${nodes.map((address) => `        server ${address} max_fails=0;`).join('\n')}
    }
    upstream front { server ${front}; }

    server {
        listen ${listen.replace(/^:/, '')};
        location / {
            proxy_pass http://$target;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            proxy_next_upstream off;
            proxy_request_buffering off;
            proxy_buffering off;
            proxy_connect_timeout 5s;
            proxy_send_timeout ${SILENCE_S}s;
            proxy_read_timeout ${SILENCE_S}s;
        }
    }
}
`
}

export function envoy({ listen, front, nodes }: Balanced): string {
  const [host, port] = addressOf(listen)
  const cluster = (name: string, address: string) => {
    const [address_, port_] = addressOf(address)
    return `  - name: ${name}
    type: STRICT_DNS
    connect_timeout: 5s
    load_assignment:
      cluster_name: ${name}
      endpoints:
      - lb_endpoints:
        - endpoint: { address: { socket_address: { address: ${address_}, port_value: ${port_} } } }
`
  }
  const route = (name: string, match: string) => `              - match: { prefix: /${match} }
                route: { cluster: ${name}, timeout: 0s, idle_timeout: ${SILENCE_S}s }
`
  const byNode = nodes.map((_, place) => {
    const exact = `{ name: x-llm-proxy-node, string_match: { exact: "${place + 1}" } }`
    return route(`node-${place + 1}`, `, headers: [${exact}]`)
  })
  return `# ${GENERATED}
static_resources:
  listeners:
  - name: calls
    address: { socket_address: { address: ${host}, port_value: ${port} } }
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: calls
          stream_idle_timeout: ${SILENCE_S}s
          # A slash of an id that is written as %2F stays so.
          path_with_escaped_slashes_action: KEEP_UNCHANGED
          http_filters:
          - name: envoy.filters.http.lua
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
              default_source_code:
                inline_string: |
${luaOf(nodes.length)}
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
          route_config:
            name: calls
            virtual_hosts:
            - name: calls
              domains: ["*"]
              routes:
${[...byNode, route('front', '')].join('')}  clusters:
${[cluster('front', front), ...nodes.map((address, place) => cluster(`node-${place + 1}`, address))].join('')}`
}

function luaOf(count: number): string {
  return `local bit = require("bit")

-- As zlib's.
local function crc32(text)
  local crc = -1
  for i = 1, #text do
    crc = bit.bxor(crc, text:byte(i))
    for _ = 1, 8 do
      crc = bit.bxor(bit.rshift(crc, 1), bit.band(0xEDB88320, -bit.band(crc, 1)))
    end
  end
  return bit.bnot(crc)
end

local function decoded(text)
  return (text:gsub("%%(%x%x)", function(hex) return string.char(tonumber(hex, 16)) end))
end

local ENDS = { "chat/completions", "completions", "responses", "responses/[^/]+", "messages",
  "messages/count_tokens", "models", "models/.*" }

local function id_in_path(path)
  local id = path:match("^/v1/chat/completions/(.+)$")
  if id then return id end
  for _, ending in ipairs(ENDS) do
    id = path:match("^/sessions/(.+)/v1/" .. ending .. "$") or path:match("^/(.+)/v1/" .. ending .. "$")
    if id then return id end
  end
end

local function id_in_key(headers)
  local bearer = (headers:get("authorization") or ""):match("^[Bb]earer +(.+)$")
  local key = bearer or headers:get("x-api-key")
  if not key then return nil end
  local id, proof = key:match("^lp%-(.+)%-([%w_-]+)$")
  -- A proof has dashes of its own: it is known by its length.
  if key:match("^lp%-") and #key > 47 and key:sub(-44, -44) == "-" then return key:sub(4, -45) end
  return id and #proof == 43 and id or key
end

function envoy_on_request(handle)
  local headers = handle:headers()
  headers:remove("x-llm-proxy-node")
  local path = headers:get(":path"):gsub("%?.*$", "")
  local id = id_in_path(path)
  if not id and path:match("^/v1/") then id = id_in_key(headers) end
  if id then
    local hash = bit.band(bit.rshift(crc32(decoded(id)), 16), 0x7fff)
    headers:add("x-llm-proxy-node", tostring(hash % ${count} + 1))
  end
  handle:clearRouteCache()
end`
    .split('\n')
    .map((line) => (line === '' ? '' : `                  ${line}`))
    .join('\n')
}

function addressOf(address: string): [host: string, port: string] {
  const colon = address.lastIndexOf(':')
  return [address.slice(0, colon) || '0.0.0.0', address.slice(colon + 1)]
}

export const BALANCERS = { haproxy, nginx, envoy }

if (import.meta.main) {
  const [kind = '', listen = '', front = '', ...nodes] = process.argv.slice(2)
  const make = BALANCERS[kind as keyof typeof BALANCERS]
  if (make === undefined || nodes.length === 0) {
    process.stderr.write(
      'usage: npm run --silent deploy:balancer -- haproxy|nginx|envoy LISTEN FRONT NODE...\n',
    )
    process.exitCode = 1
  } else process.stdout.write(make({ listen, front, nodes }))
}
