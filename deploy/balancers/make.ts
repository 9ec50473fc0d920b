/**
 * Generates configurations of load balancers for several nodes (docs/nodes.md). Any node serves any request. The balancer
 * hashes the session id, from the request path or the agent's key, so that requests of a session reach the same node and
 * need no forwarding. Requests without a session are distributed among the nodes in turn.
 *
 *     npm run --silent deploy:balancer -- haproxy :8080 node-1:8080 node-2:8080 ... > haproxy.cfg
 */
import { isIP } from 'node:net'

export interface Balanced {
  /** The address at which the balancer listens: `host:port`; without a host, all addresses. */
  listen: string
  /** `host:port` of every node. */
  nodes: readonly string[]
}

/** The end of an agent's path, after the session id. */
const AGENT_ROUTE =
  '(?:chat/completions|completions|responses(?:/[^/]+)?|messages(?:/count_tokens)?|models(?:/.*)?)'
const ID_AT_END = '^/v1/chat/completions/(.+)$'
const ID_INSIDE = `^/(?:sessions/)?(.+)/v1/${AGENT_ROUTE}$`
/** An agent's key, which names its session; on a proxy without keys the id itself is the key. */
const AGENT_KEY = '^lp-(.+)-[A-Za-z0-9_-]{43}$'

/** The longest silence of a request: an engine may take that long for a complete response. */
const SILENCE_S = 3_600
/** The default of --max-body-bytes, and a little more: the node itself rejects larger bodies. */
const BODY_MIB = 17

const GENERATED = 'Made by deploy/balancers/make.ts; docs/nodes.md tells what it does.'

export function haproxy({ listen, nodes }: Balanced): string {
  const quote = (pattern: string) => `'${pattern}'`
  // Text quoted for the line is quoted again, in double quotes, for the converter.
  const regsub = (pattern: string) => `regsub("${pattern}","\\1")`
  // A restarted pod has another address behind its name.
  const hasNames = nodes.some((address) => isIP(address.replace(/:\d+$/, '')) === 0)
  const resolving = hasNames ? ' resolvers names' : ''
  const resolvers = `resolvers names
    parse-resolv-conf
    hold valid 5s

`
  const servers = nodes.map(
    (address, place) =>
      `    server node-${place + 1} ${address} check inter 1s init-addr last,libc,none${resolving}`,
  )
  return `# ${GENERATED}
global
    # Paths and keys contain ids of up to 512 bytes, percent-encoded.
    tune.bufsize 32768

${hasNames ? resolvers : ''}defaults
    mode http
    timeout connect 5s
    timeout http-request 1m
    timeout client ${SILENCE_S}s
    timeout server ${SILENCE_S}s
    # A failed connection is retried at another node; a request that was sent is never repeated.
    retries 3
    option redispatch 1
    option httpchk GET /health

frontend calls
    bind ${listen.startsWith(':') ? `*${listen}` : listen}
    acl id_at_end path_reg ${quote(ID_AT_END)}
    acl id_inside path_reg ${quote(ID_INSIDE)}
    acl by_key path_beg /v1/
    http-request set-var(txn.id) 'path,${regsub(ID_AT_END)},url_dec' if id_at_end
    http-request set-var(txn.id) 'path,${regsub(ID_INSIDE)},url_dec' if !id_at_end id_inside
    http-request set-var(txn.key) req.hdr(x-api-key) if by_key !id_at_end
    http-request set-var(txn.key) http_auth_bearer if by_key !id_at_end { http_auth_bearer -m found }
    http-request set-var(txn.id) 'var(txn.key),${regsub(AGENT_KEY)},url_dec' if { var(txn.key) -m found }
    use_backend in-turn unless { var(txn.id) -m found }
    default_backend by-session

backend by-session
    balance hash var(txn.id)
    hash-type consistent
${servers.join('\n')}

backend in-turn
    balance roundrobin
${servers.join('\n')}
`
}

export function nginx({ listen, nodes }: Balanced): string {
  return `# ${GENERATED}
# An id with characters outside of A-Z a-z 0-9 . _ ~ : - is found in a path, and not in a key, where it is percent-encoded.
worker_processes auto;
events { worker_connections 16384; }

http {
    access_log off;
    # The slashes of an id are part of it.
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
    map "$uri $id_in_key" $id_of_call {
        "~^/v1/.+ (?<named>.+)$" $named;
        default $request_id;
    }
    map $id_in_path $session_id {
        "" $id_of_call;
        default $id_in_path;
    }

    upstream nodes {
        hash $session_id consistent;
${nodes.map((address) => `        server ${address} max_fails=1 fail_timeout=2s;`).join('\n')}
    }

    server {
        listen ${listen.replace(/^:/, '')};
        location / {
            proxy_pass http://nodes;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_set_header Host $host;
            # A request that was sent to a node is not sent to another.
            proxy_next_upstream error;
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

export function envoy({ listen, nodes }: Balanced): string {
  const [host, port] = addressOf(listen)
  const endpoints = nodes.map((address) => {
    const [host, port] = addressOf(address)
    return `        - endpoint: { address: { socket_address: { address: ${host}, port_value: ${port} } } }`
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
          # A slash in an id, written %2F, stays encoded.
          path_with_escaped_slashes_action: KEEP_UNCHANGED
          http_filters:
          - name: envoy.filters.http.lua
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
              default_source_code:
                inline_string: |
${LUA}
          - name: envoy.filters.http.router
            typed_config: { "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }
          route_config:
            name: calls
            virtual_hosts:
            - name: calls
              domains: ["*"]
              routes:
              - match: { prefix: / }
                route:
                  cluster: nodes
                  timeout: 0s
                  idle_timeout: ${SILENCE_S}s
                  # Requests without an id go to any node.
                  hash_policy: [{ header: { header_name: x-llm-proxy-session } }]
                  # A failed connection is retried at another node; a request that was sent is never repeated.
                  retry_policy:
                    retry_on: connect-failure
                    num_retries: 3
                    host_selection_retry_max_attempts: 5
                    retry_host_predicate:
                    - name: envoy.retry_host_predicates.previous_hosts
                      typed_config:
                        "@type": type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate
  clusters:
  - name: nodes
    type: STRICT_DNS
    connect_timeout: 5s
    lb_policy: RING_HASH
    health_checks:
    - { timeout: 2s, interval: 1s, unhealthy_threshold: 3, healthy_threshold: 1, http_health_check: { path: /health } }
    load_assignment:
      cluster_name: nodes
      endpoints:
      - lb_endpoints:
${endpoints.join('\n')}
`
}

const LUA = `local function decoded(text)
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
  headers:remove("x-llm-proxy-session")
  local path = headers:get(":path"):gsub("%?.*$", "")
  local id = id_in_path(path)
  if not id and path:match("^/v1/") then id = id_in_key(headers) end
  if id then headers:add("x-llm-proxy-session", decoded(id)) end
end`
  .split('\n')
  .map((line) => (line === '' ? '' : `                  ${line}`))
  .join('\n')

function addressOf(address: string): [host: string, port: string] {
  const colon = address.lastIndexOf(':')
  return [address.slice(0, colon) || '0.0.0.0', address.slice(colon + 1)]
}

export const BALANCERS = { haproxy, nginx, envoy }

if (import.meta.main) {
  const [kind = '', listen = '', ...nodes] = process.argv.slice(2)
  const make = BALANCERS[kind as keyof typeof BALANCERS]
  if (make === undefined || nodes.length === 0) {
    process.stderr.write('usage: npm run --silent deploy:balancer -- haproxy|nginx|envoy LISTEN NODE...\n')
    process.exitCode = 1
  } else process.stdout.write(make({ listen, nodes }))
}
