"""Settings of the gateway by what they are about; `gateway.config.GatewaySettings` joins them."""
